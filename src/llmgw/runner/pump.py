"""Carries an engine's raw output into the bounded log, and gives its space back.

An engine appends to `logs/NAME.raw` and never waits for a reader. The part that has been read on
is punched out of the file, and with it the cursor is kept: reading begins at the first data that
is left. So a runner that is killed loses nothing; at most it logs some lines a second time.
"""

import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from llmgw.runner.atomic import PRIVATE_MODE
from llmgw.runner.libc import CANNOT_PUNCH, Libc
from llmgw.runner.lines import Blanker, LineCutter
from llmgw.runner.logs import LOGS_DIRECTORY, LogWriter, format_line

RAW_SUFFIX: Final = ".raw"
READ_BYTES: Final = 16 * 1024  # short lines take ten times as much memory on their way
RAW_BYTES_MAX: Final = 64 * 1024 * 1024
PARTIAL_S_MAX: Final = 2.0
RETRY_S: Final = 1.0
_BLOCK_BYTES: Final = 4096
_SEARCH_BYTES: Final = 1024 * 1024


def raw_path(directory: str | os.PathLike[str], name: str) -> str:
    """Where the command `name` of the shard in `directory` writes its output."""
    return os.path.join(directory, LOGS_DIRECTORY, name + RAW_SUFFIX)


def open_raw(path: str, extra_flags: int = 0) -> int:
    """A descriptor of a raw file (made if need be, mode 0600)."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | extra_flags
    return os.open(path, flags, PRIVATE_MODE)


def first_data(descriptor: int) -> int:
    """Where what is not yet punched out begins."""
    try:
        at = os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as fault:
        if fault.errno == errno.ENXIO:
            return os.fstat(descriptor).st_size
        return 0
    while block := os.pread(descriptor, _BLOCK_BYTES, at):
        # The kernel keeps whole blocks: the punched part of the first one reads as NUL.
        rest = block.lstrip(b"\0")
        if rest:
            return at + len(block) - len(rest)
        at += len(block)
    return at


@dataclass(slots=True)
class Trouble:
    """What keeps the log from being written, said once when it begins and once when it ends."""

    why: str | None = None
    lost_bytes: int = 0


class RawPump:
    """Reads one raw file on; one step never waits and reads a bounded piece."""

    def __init__(
        self, path: str, name: str, secrets: Sequence[str], log: LogWriter, libc: Libc
    ) -> None:
        self.name = name
        self.trouble = Trouble()
        self._log = log
        self._libc = libc
        self._path = path
        self._descriptor = open_raw(path)
        self._blanker = Blanker([secret.encode() for secret in secrets])
        self._cutter = LineCutter()
        self._read = self._done = first_data(self._descriptor)
        self._next_done = self._done
        self._pending: list[bytes] = []
        self._partial_since_s: float | None = None
        self._retry_at_s = 0.0
        self._can_punch = True

    def step(self, now_s: float, wall_s: float) -> bool:
        """Carry one piece on; whether there may be more at once."""
        if self._pending:
            return self._write(now_s)
        try:
            return self._read_on(now_s, wall_s)
        except OSError as fault:
            self.trouble.why = f"the output of {self.name} cannot be read: {fault.strerror}"
            return False

    def _read_on(self, now_s: float, wall_s: float) -> bool:
        size = os.fstat(self._descriptor).st_size
        if size < self._read:  # somebody truncated it
            self._read = self._done = self._next_done = 0
        if size - self._read > RAW_BYTES_MAX:
            self._skip_to(size - RAW_BYTES_MAX // 2)
        data = os.pread(self._descriptor, READ_BYTES, self._read)
        if data:
            self._take(data, now_s, wall_s)
            return self._write(now_s)
        if self._partial_since_s is not None and now_s - self._partial_since_s > PARTIAL_S_MAX:
            self._flush_partial(wall_s)
            return self._write(now_s)
        self.trouble.why = None
        return False

    def _take(self, data: bytes, now_s: float, wall_s: float) -> None:
        lines = self._cutter.feed(self._blanker.feed(data))
        self._pending = [format_line(line, self.name, wall_s) for line in lines]
        self._read += len(data)
        settled = self._read - self._blanker.held_bytes
        if self._cutter.partial_bytes == 0 and self._blanker.is_between_secrets:
            self._next_done = settled
        else:
            newline = max(data.rfind(b"\n"), data.rfind(b"\r"))
            boundary = self._read - len(data) + newline + 1
            if newline >= 0 and boundary <= settled:
                self._next_done = boundary
        self._partial_since_s = now_s if self._cutter.partial_bytes else None

    def _flush_partial(self, wall_s: float) -> None:
        lines = self._cutter.flush()
        self._pending = [format_line(line, self.name, wall_s) for line in lines]
        if self._blanker.is_between_secrets:
            self._next_done = self._read - self._blanker.held_bytes
        self._partial_since_s = None

    def _write(self, now_s: float) -> bool:
        if self._pending:
            if now_s < self._retry_at_s:
                self._bound_backlog()
                return False
            try:
                del self._pending[: self._log.append(self._pending)]
            except OSError as fault:
                self._retry_at_s = now_s + RETRY_S
                self.trouble.why = f"the log cannot be written: {fault.strerror}"
                return False
        if self._pending:
            return True
        self.trouble.why = None
        if self._next_done > self._done:
            self._give_back()
        return True

    def _bound_backlog(self) -> None:
        """While nothing can be written the raw file must not grow for ever either."""
        size = os.fstat(self._descriptor).st_size
        if size - self._read > RAW_BYTES_MAX:
            self._skip_to(size - RAW_BYTES_MAX // 2)
            self._give_back()

    def _skip_to(self, offset: int) -> None:
        self.trouble.lost_bytes += offset - self._read
        self._blanker.skip()
        self._cutter.flush()
        self._read = self._next_done = offset

    def _give_back(self) -> None:
        self._done = self._next_done
        try:
            if self._can_punch:
                self._libc.punch_hole(self._descriptor, 0, self._done)
            elif self._done == self._read and self._done > RAW_BYTES_MAX:
                # A line written between the read and this is lost: the price of a file system
                # that cannot punch holes.
                os.ftruncate(self._descriptor, 0)
        except OSError as fault:
            self._can_punch = self._can_punch and fault.errno not in CANNOT_PUNCH

    def drain(self, now_s: float, wall_s: float) -> bool:
        """Like `step`, once nobody writes any more: whether all is logged and the file is gone."""
        if self.step(now_s, wall_s) or self._pending or self.trouble.why:
            return False
        if os.fstat(self._descriptor).st_size > self._read:
            return False
        rest = self._cutter.feed(self._blanker.flush()) + self._cutter.flush()
        self._pending = [format_line(line, self.name, wall_s) for line in rest]
        self._next_done = self._read
        self._write(now_s)
        if self._pending:
            return False
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        return True

    def close(self) -> None:
        """Close the raw file."""
        os.close(self._descriptor)


def truncate_raw(directory: str | os.PathLike[str], bytes_max: int) -> int:
    """Give back what raw files hold beyond `bytes_max` each, oldest first; the bytes given back.

    For the agent, while no runner lives to read them on.
    """
    logs = os.path.join(directory, LOGS_DIRECTORY)
    given = 0
    try:
        names = [name for name in os.listdir(logs) if name.endswith(RAW_SUFFIX)]
    except FileNotFoundError:
        return 0
    for name in names:
        descriptor = os.open(os.path.join(logs, name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            given += _truncate_one(descriptor, bytes_max)
        finally:
            os.close(descriptor)
    return given


def _truncate_one(descriptor: int, bytes_max: int) -> int:
    size = os.fstat(descriptor).st_size
    begin = first_data(descriptor)
    if size - begin <= bytes_max:
        return 0
    # Up to the end of a line, or what is left could begin inside a key that is then not known.
    head = os.pread(descriptor, _SEARCH_BYTES, size - bytes_max)
    newline = head.find(b"\n")
    cut = size - bytes_max + (newline + 1 if newline >= 0 else len(head))
    try:
        Libc().punch_hole(descriptor, 0, cut)
    except OSError as fault:
        if fault.errno not in CANNOT_PUNCH:
            raise
        os.ftruncate(descriptor, 0)
    return cut - begin
