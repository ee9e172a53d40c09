"""A shard's bounded log: numbered files of stamped lines, oldest dropped; read by tail or cursor.

One line is `2026-12-01T14:09:29.123Z NAME| text`; `NAME+ text` continues the line before it. A
cursor is `NUMBER:OFFSET`; since files are only appended to and numbers only grow, it stays good
across restarts of the runner, and a reader whose place was dropped is told so.
"""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from llmgw.runner.atomic import PRIVATE_MODE
from llmgw.runner.lines import Line

LOGS_DIRECTORY: Final = "logs"
_PREFIX: Final = "shard."
_SUFFIX: Final = ".log"
BLOCK_BYTES: Final = 32 * 1024


def stamp(wall_s: float) -> str:
    """Wall time as people read it: UTC, milliseconds."""
    # Rounded once, so that 59.9996 s does not become :59.1000.
    seconds, milliseconds = divmod(round(wall_s * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def format_line(line: Line, name: str, wall_s: float) -> bytes:
    """The line as it is kept."""
    mark = "+" if line.continues else "|"
    return f"{stamp(wall_s)} {name}{mark} ".encode() + line.text + b"\n"


def _numbers(directory: str) -> list[int]:
    """The numbers of the log files that are there, oldest first."""
    found = []
    for name in os.listdir(directory):
        number = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if number.isdigit() and name == _name(int(number)):
            found.append(int(number))
    return sorted(found)


def _name(number: int) -> str:
    return f"{_PREFIX}{number:06d}{_SUFFIX}"


class LogWriter:
    """Appends lines to the newest file and begins a new one when it is full.

    A failed append (a full disk) leaves no torn line behind and raises; nothing else is changed,
    so the caller appends the same lines again later.
    """

    def __init__(self, directory: str, bytes_max: int, files_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._number = 0
        self._descriptor = -1
        self._size = 0

    def append(self, lines: Sequence[bytes]) -> int:
        """Append as many as can be; how many were. Raises OSError only if none could be."""
        done = 0
        while done < len(lines):
            try:
                self._ensure_room(len(lines[done]))
                count = self._fitting(lines, done)
                self._write(b"".join(lines[done : done + count]))
            except OSError:
                if done:
                    return done
                raise
            done += count
        return done

    def _fitting(self, lines: Sequence[bytes], first: int) -> int:
        room = self._bytes_max - self._size
        count = 0
        while first + count < len(lines) and (room := room - len(lines[first + count])) >= 0:
            count += 1
        return max(1, count)

    def _ensure_room(self, length: int) -> None:
        if self._descriptor < 0:
            self._open(max([1, *_numbers(self._directory)]))
        if self._size and self._size + length > self._bytes_max:
            self._open(self._number + 1)
            for number in _numbers(self._directory):
                if number <= self._number - self._files_max:
                    os.unlink(os.path.join(self._directory, _name(number)))

    def _open(self, number: int) -> None:
        path = os.path.join(self._directory, _name(number))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, PRIVATE_MODE)
        self.close()
        self._descriptor, self._number = descriptor, number
        self._size = os.fstat(descriptor).st_size
        if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
            self._write(b"\n")  # an earlier runner was killed in the middle of a line

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                # The disk is full here; the next write says so by its error.
                written += os.write(self._descriptor, data[written:])
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        if written < len(data):
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def close(self) -> None:
        """Close the newest file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some lines, where reading goes on, and whether lines between were dropped meanwhile."""

    lines: tuple[str, ...]
    cursor: str
    lost: bool = False


def tail(directory: str | os.PathLike[str], lines: int, bytes_max: int) -> LogPiece:
    """The last lines of the log of the shard in `directory`; no runner is needed."""
    logs = os.path.join(directory, LOGS_DIRECTORY)
    blocks: list[bytes] = []
    size = count = begin = 0
    cursor = (1, 0)
    for number, begin, block in _backwards(logs):
        if not blocks:
            cursor = (number, begin + len(block))
        blocks.append(block)
        size += len(block)
        count += block.count(b"\n")
        if size > bytes_max or count > lines:
            break
    data = b"".join(reversed(blocks))
    whole = data[: data.rfind(b"\n") + 1]
    torn_bytes = len(data) - len(whole)
    if len(whole) > bytes_max or begin > 0:
        cut = whole[-bytes_max:] if bytes_max > 0 else b""
        whole = cut[cut.find(b"\n") + 1 :]
    kept = _texts(whole)
    return LogPiece(kept[-lines:] if lines > 0 else (), f"{cursor[0]}:{cursor[1] - torn_bytes}")


def _backwards(logs: str) -> Iterator[tuple[int, int, bytes]]:
    """Blocks of the log from its end: number of the file, offset in it, bytes."""
    try:
        numbers = _numbers(logs)
    except FileNotFoundError:
        return
    for number in reversed(numbers):
        try:
            with open(os.path.join(logs, _name(number)), "rb", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                while end > 0:
                    begin = max(0, end - BLOCK_BYTES)
                    file.seek(begin)
                    yield number, begin, file.read(end - begin) or b""
                    end = begin
        except FileNotFoundError:
            return  # dropped just now, and with it all older ones


def follow(directory: str | os.PathLike[str], cursor: str, bytes_max: int) -> LogPiece:
    """What was logged after `cursor`, whole lines, at most about `bytes_max`; ValueError if bad."""
    logs = os.path.join(directory, LOGS_DIRECTORY)
    number_text, _, offset_text = cursor.partition(":")
    number, offset = int(number_text), int(offset_text)
    try:
        numbers = _numbers(logs)
    except FileNotFoundError:
        numbers = []
    later = [n for n in numbers if n >= number]
    lost = bool(numbers) and number not in later and not (number == 1 and offset == 0)
    if not later:
        return LogPiece((), cursor)
    if later[0] != number:
        number, offset = later[0], 0
    whole = b""
    for current in later:
        if current != number:
            number, offset = current, 0
        whole = _read_lines(os.path.join(logs, _name(number)), offset, bytes_max)
        if whole:
            break
    return LogPiece(_texts(whole), f"{number}:{offset + len(whole)}", lost)


def _read_lines(path: str, offset: int, bytes_max: int) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(max(bytes_max, BLOCK_BYTES)) or b""
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _texts(whole: bytes) -> tuple[str, ...]:
    return tuple(line.decode("utf-8", "replace") for line in whole.split(b"\n")[:-1])
