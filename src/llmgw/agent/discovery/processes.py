"""Which session a process belongs to, as /proc says: a reading, never a reason to send a signal."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

# Position in /proc/PID/stat after the closing bracket of the title: state ppid pgrp session ...
_SESSION: Final = 3


def session_of(proc: Path, pid: int) -> int | None:
    """Return the session of a process, None if no such process is to be seen."""
    try:
        raw = (proc / str(pid) / "stat").read_bytes()
        return int(raw.rpartition(b")")[2].split()[_SESSION])
    except (OSError, ValueError, IndexError):
        return None


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
