"""The shard's commands as running processes: who has ended, with which status, and signals to them.

A command that this runner started is its child and its status is known. One that an earlier
runner started is watched through a pidfd, and how it ended cannot be known.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import Final

from llmgw.runner.identity import Known
from llmgw.runner.poller import READ, Poller
from llmgw.runner.process import Process, read_process

REAPS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended; `status` is None where it could not be observed."""

    name: str
    status: int | None


@dataclass(slots=True)
class _Watched:
    process: Process
    pidfd: int | None  # None: a child, whose pid is its own until it is reaped
    ended: bool = False


class Commands:
    """All commands that were started, in order."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._watched: dict[str, _Watched] = {}

    def add_child(self, name: str, process: Process) -> None:
        """Watch a command that this runner has started."""
        self._watched[name] = _Watched(process, None)

    def take_over(self, known: Known) -> bool:
        """Watch a command of an earlier runner; False if it is not there any more."""
        try:
            pidfd = os.pidfd_open(known.pid)
        except OSError:
            return False
        process = read_process(known.pid)
        if process is None or process.start_ticks != known.start_ticks or not process.alive:
            os.close(pidfd)
            return False
        watched = _Watched(process, pidfd)
        self._watched[known.name] = watched
        self._poller.add(pidfd, READ, lambda: self._on_gone(watched))
        return True

    def _on_gone(self, watched: _Watched) -> None:
        watched.ended = True
        if watched.pidfd is not None:
            self._poller.remove(watched.pidfd)

    def is_alive(self, name: str) -> bool:
        """Whether the command was started and has not ended."""
        watched = self._watched.get(name)
        return watched is not None and not watched.ended

    def alive_sessions(self) -> frozenset[int]:
        """The sessions in which commands live that an earlier runner started."""
        return frozenset(
            watched.process.session
            for watched in self._watched.values()
            if watched.pidfd is not None and not watched.ended
        )

    def reap(self) -> list[Ended]:
        """Take the statuses of children that have ended, adopted orphans too; the commands."""
        ended = []
        for _ in range(REAPS_MAX):
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for name, watched in self._watched.items():
                if watched.pidfd is None and watched.process.pid == pid and not watched.ended:
                    watched.ended = True
                    ended.append(Ended(name, os.waitstatus_to_exitcode(wait_status)))
        for name, watched in self._watched.items():
            if watched.ended and watched.pidfd is not None:
                os.close(watched.pidfd)
                watched.pidfd = None
                ended.append(Ended(name, None))
        return ended

    def terminate(self, name: str) -> None:
        """Send SIGTERM to the command itself, not to its children."""
        watched = self._watched.get(name)
        if watched is None or watched.ended:
            return
        # One that changed its user may refuse: the kill at the end then says that it is left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if watched.pidfd is None:
                os.kill(watched.process.pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(watched.pidfd, signal.SIGTERM)
