"""Daemons that `llmgw up` starts and finds again: known by pid, start time and boot id together.

A pid alone proves nothing: the kernel uses it again.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.runtime.clock import Clock
from llmgw.runtime.threads import ThreadPool

LOOK_S: Final = 0.1
KILL_S_MAX: Final = 10.0
PRIVATE: Final = 0o600
TAIL_BYTES: Final = 4096
TAIL_LINES: Final = 8
SENTENCE: Final = "llmgw: "
"""What a command that fails begins its last words with."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a daemon's log; as much again is kept beside it."""

# Positions in /proc/PID/stat after the closing bracket of the title.
_STATE, _START = 0, 19


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for ever."""

    pid: int
    start_ticks: int
    boot: str


def identify(pid: int) -> ProcessId | None:
    """Return who has this pid now; None if nobody, or only what is left of somebody, has it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    words = stat.rpartition(")")[2].split()
    return None if words[_STATE] in "ZX" else ProcessId(pid, int(words[_START]), boot)


def is_alive(process: ProcessId) -> bool:
    """Whether this very process lives."""
    return identify(process.pid) == process


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process; False if it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


async def end(
    process: ProcessId, grace_s: float, hurry: asyncio.Event, pool: ThreadPool, clock: Clock
) -> bool:
    """End a process, by force after `grace_s` or where `hurry` is set; False if it stays."""
    if await pool.run(send, process, signal.SIGTERM):
        await _until_gone(process, grace_s, hurry, pool, clock)
    if await pool.run(send, process, signal.SIGKILL):
        await _until_gone(process, KILL_S_MAX, asyncio.Event(), pool, clock)
    return not await pool.run(is_alive, process)


async def _until_gone(
    process: ProcessId, seconds: float, hurry: asyncio.Event, pool: ThreadPool, clock: Clock
) -> None:
    deadline_s = clock.monotonic_s() + seconds
    while clock.monotonic_s() < deadline_s and not hurry.is_set():
        if not await pool.run(is_alive, process):
            return
        await clock.sleep(LOOK_S)


class Child:
    """A process in a session of its own, which a Ctrl-C at our terminal does not reach."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it; raise OSError. What it writes is added to `log`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(log, flags, PRIVATE)
        self._log, self._log_from = log, os.fstat(descriptor).st_size
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                env=dict(environment),
            )
        finally:
            os.close(descriptor)
        # It cannot be reaped by anybody else, so the pid is still its own here.
        found = identify(self._process.pid)
        self.id = found or ProcessId(self._process.pid, 0, "")

    def poll(self) -> int | None:
        """Return its exit code once it has ended; a negative one is a signal's number."""
        return self._process.poll()

    def last_words(self) -> str:
        """Return the sentence that it ended with, else the last lines that it has written."""
        return last_words(_tail(self._log, self._log_from))

    def leave(self) -> None:
        """Let it live on without us."""
        if self._process.poll() is None:
            self._process.returncode = 0  # Popen warns of a child that outlives it


def how(code: int) -> str:
    """Say how a process ended."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def last_words(text: str) -> str:
    """Return the sentence that a failed command ends with, else the last lines of `text`."""
    lines = text.strip().splitlines()
    begin = next((i for i in reversed(range(len(lines))) if lines[i].startswith(SENTENCE)), None)
    if begin is None:
        return "\n".join(lines[-TAIL_LINES:])
    return "\n".join(lines[begin:]).removeprefix(SENTENCE)


def _tail(log: Path, begin: int) -> str:
    """Return the end of what was written from `begin` on; earlier lives have written before it."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # Trimmed meanwhile: then all of it is new.
            file.seek(max(begin if begin <= size else 0, size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def trim(log: Path) -> None:
    """Keep a log within its bound; its writer appends, so it goes on at the new end."""
    try:
        if log.stat().st_size <= LOG_BYTES_MAX:
            return
        log.with_name(f"{log.name}.1").write_bytes(log.read_bytes())
        os.truncate(log, 0)
    except OSError:
        return  # a full disk: the next look tries again
