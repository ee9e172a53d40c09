"""One shard's log: all its raw files carried on into one bounded log, with the runner's notes."""

import contextlib
import os
from collections import deque
from typing import Final

from llmgw.runner.launch import NOTES_NAME, Launch
from llmgw.runner.libc import Libc
from llmgw.runner.lines import Line
from llmgw.runner.logs import LOGS_DIRECTORY, LogWriter, format_line
from llmgw.runner.pump import RawPump, open_raw, raw_path

NOTES_MAX: Final = 64
STEPS_PER_TURN: Final = 32


class ShardLog:
    """The log of one shard while its runner lives."""

    def __init__(self, base: str, launch: Launch, libc: Libc) -> None:
        self._base = base
        self._secrets = launch.blank
        self._libc = libc
        logs = os.path.join(base, LOGS_DIRECTORY)
        with contextlib.suppress(FileExistsError):
            os.mkdir(logs, 0o700)
        self._writer = LogWriter(logs, launch.log_bytes_max, launch.log_files_max)
        self._pumps: list[RawPump] = []
        self._notes: deque[bytes] = deque(maxlen=NOTES_MAX)

    def open_output(self, name: str) -> int:
        """A descriptor to which the command `name` appends; what it writes is read on."""
        self.read_on(name)
        return open_raw(raw_path(self._base, name), os.O_APPEND)

    def read_on(self, name: str) -> None:
        """Read the raw file of `name` on."""
        path = raw_path(self._base, name)
        self._pumps.append(RawPump(path, name, self._secrets, self._writer, self._libc))

    def note(self, text: str, wall_s: float) -> None:
        """Put a line of the runner's own into the log."""
        self._notes.append(format_line(Line(text.encode()), NOTES_NAME, wall_s))

    @property
    def trouble(self) -> str | None:
        """Why the log cannot be written at present."""
        return next((pump.trouble.why for pump in self._pumps if pump.trouble.why), None)

    def step(self, now_s: float, wall_s: float) -> bool:
        """Carry a bounded piece on; whether there may be more at once."""
        self._write_notes()
        more = False
        for pump in self._pumps:
            for _ in range(STEPS_PER_TURN):
                if not pump.step(now_s, wall_s):
                    break
            else:
                more = True
            self._tell_losses(pump, wall_s)
        return more

    def _tell_losses(self, pump: RawPump, wall_s: float) -> None:
        if pump.trouble.lost_bytes and pump.trouble.why is None:
            lost, pump.trouble.lost_bytes = pump.trouble.lost_bytes, 0
            self.note(
                f"{lost} bytes of {pump.name}'s output were dropped: too much at once", wall_s
            )

    def _write_notes(self) -> None:
        if self._notes:
            with contextlib.suppress(OSError):
                for _ in range(self._writer.append(tuple(self._notes))):
                    self._notes.popleft()

    def drain(self, now_s: float, wall_s: float) -> bool:
        """Carry on what is left, once nobody writes any more; whether all is done."""
        self._write_notes()
        for pump in tuple(self._pumps):
            if pump.drain(now_s, wall_s):
                pump.close()
                self._pumps.remove(pump)
        return not self._pumps and not self._notes
