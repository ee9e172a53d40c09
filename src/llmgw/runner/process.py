"""Who a process is: pid, start time and boot id; read from /proc and nowhere else.

Titles, argv and environment prove nothing (engines overwrite them), so none is read here but the
short title that people see in a sentence.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
STAT_BYTES_MAX: Final = 4096

# Positions in /proc/PID/stat after the closing bracket of the title: state ppid pgrp session ...
_STATE, _PPID, _SESSION, _START = 0, 1, 3, 19


class Verdict(StrEnum):
    """Is this pid the process that was written down?"""

    SAME = "same"
    DIFFERENT = "different"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc/PID/stat says, at one moment."""

    pid: int
    ppid: int
    session: int
    state: str
    start_ticks: int
    title: str
    alive: bool

    def __str__(self) -> str:
        return f"{self.pid} ({self.title}, state {self.state})"


def boot_id() -> str:
    """The kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boot_s() -> float:
    """Seconds since the machine booted, suspended time included; start times count from there."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_ticks() -> int:
    """`boot_s` in the unit of start times."""
    return int(boot_s() * TICKS_PER_S)


def read_process(pid: int) -> Process | None:
    """The process that holds `pid`; None if none is to be seen; OSError if it cannot be read."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        raw = os.read(descriptor, STAT_BYTES_MAX)
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    return _parse_stat(pid, raw)


def _parse_stat(pid: int, raw: bytes) -> Process:
    # The title may hold brackets and spaces of its own: the last bracket ends it.
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    state = fields[_STATE].decode("ascii")
    return Process(
        pid=pid,
        ppid=int(fields[_PPID]),
        session=int(fields[_SESSION]),
        state=state,
        start_ticks=int(fields[_START]),
        title=head.partition(b"(")[2].decode("utf-8", "replace"),
        alive=state not in "ZXx" or (state == "Z" and _has_other_threads(pid)),
    )


def _has_other_threads(pid: int) -> bool:
    """Whether only the first thread has ended: such a process looks like a zombie and lives."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def all_processes() -> Iterator[Process]:
    """Every process that can be seen; the listing is not one moment, callers verify afterwards."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            process = read_process(int(name))
        except OSError:
            continue
        if process is not None:
            yield process


def verify(pid: int, start_ticks: int | None, boot: str | None) -> Verdict:
    """Whether the live process `pid` is the one that was written down with these facts.

    A process that has ended, a zombie too, is DIFFERENT: nothing lives there that was ours.
    """
    try:
        if boot is not None and boot != boot_id():
            return Verdict.DIFFERENT
        process = read_process(pid) if pid > 0 else None
    except OSError:
        return Verdict.CANNOT_TELL
    if process is None:
        return Verdict.CANNOT_TELL if _is_hidden(pid) else Verdict.DIFFERENT
    if not process.alive:
        return Verdict.DIFFERENT
    if start_ticks is None or boot is None:
        return Verdict.CANNOT_TELL
    return Verdict.SAME if process.start_ticks == start_ticks else Verdict.DIFFERENT


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show us (hidepid)."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return read_process(pid) is None
    except OSError:
        return True
