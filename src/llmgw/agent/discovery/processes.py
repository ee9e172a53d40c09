"""Which session a process belongs to, as /proc says: a reading, never a reason to send a signal."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

# Positions in /proc/PID/stat after the closing bracket of the title: state ppid pgrp session ...
_PARENT, _SESSION = 1, 3
ANCESTORS_MAX: Final = 16


def session_of(proc: Path, pid: int) -> int | None:
    """Return the session of a process, None if no such process is to be seen."""
    return _parent_and_session(proc, pid)[1]


def sessions_above(proc: Path, pid: int) -> frozenset[int]:
    """Return the sessions of a process and of its ancestors; empty if it is not to be seen.

    An engine's child may have left for a session of its own; its runner stays its ancestor.
    """
    found: set[int] = set()
    for _ in range(ANCESTORS_MAX):
        parent, session = _parent_and_session(proc, pid)
        if session is None:
            break
        found.add(session)
        if parent is None or parent <= 1:
            break
        pid = parent
    return frozenset(found)


def _parent_and_session(proc: Path, pid: int) -> tuple[int | None, int | None]:
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[_PARENT]), int(fields[_SESSION])
    except (OSError, ValueError, IndexError):
        return None, None


def title_of(proc: Path, pid: int) -> str:
    """Return the short title of a process, for people."""
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "unknown"


def pids_of(proc: Path, sessions: Collection[int]) -> tuple[int, ...]:
    """Return all processes of these sessions."""
    if not sessions:
        return ()
    pids = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return tuple(pid for pid in pids if session_of(proc, pid) in sessions)
