"""Which live processes are certainly one shard's, and how those, and only those, are killed.

Theory. /proc is not read at one moment, so everything that a proof rests on is read again after
the listing: what lived before it and lives after it lived during it. A child of a proven process
is proven (orphans go to init or to their runner, never to an engine). The killer first stops
(SIGSTOP) what it has proven, until a listing finds nothing new: what is stopped cannot fork, so
nothing escapes by losing its parent. Each signal goes through a pidfd whose process is verified
after it was opened, so a recycled pid receives none.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw.runner.identity import Identity, Session
from llmgw.runner.process import (
    Process,
    Verdict,
    all_processes,
    boot_id,
    boot_ticks,
    read_process,
    verify,
)

PURGE_STEP_S: Final = 0.01
FREEZE_ROUNDS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Members:
    """The live processes of a shard: its runner, its own, and sentences on what is in doubt."""

    runner: Process | None = None
    processes: tuple[Process, ...] = ()
    unsure: tuple[str, ...] = ()
    proven_sessions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Killed:
    """What a kill did: killed, what is still there, and what was in doubt and left alone."""

    killed: tuple[Process, ...]
    left: tuple[Process, ...]
    unsure: tuple[str, ...]


def is_still(process: Process) -> bool:
    """Whether this very process is still there, as a zombie too (its number is then not free)."""
    try:
        now = read_process(process.pid)
    except OSError:
        return False
    return now is not None and now.start_ticks == process.start_ticks


def members(identity: Identity) -> Members:
    """Which live processes are certainly this shard's; the calling process is left out."""
    if identity.boot_id != boot_id():
        return Members()
    table = tuple(all_processes())
    found: dict[int, Process] = {}
    unsure: list[str] = []
    proven: set[int] = set()
    for session in identity.sessions:
        inside = [process for process in table if process.session == session.id]
        match _verdict(session, inside, identity):
            case Verdict.SAME:
                proven.add(session.id)
                found.update((process.pid, process) for process in inside)
            case Verdict.CANNOT_TELL:
                unsure.append(
                    f"session {session.id} has live processes ({_names(inside)}), and nothing "
                    "proves that they are this shard's"
                )
            case Verdict.DIFFERENT:
                pass
    _add_commands(identity, found, unsure)
    _add_cgroup(identity, found)
    _add_descendants(table, found)
    return _as_members(identity, found, tuple(unsure), frozenset(proven))


def _as_members(
    identity: Identity,
    found: dict[int, Process],
    unsure: tuple[str, ...],
    proven: frozenset[int],
) -> Members:
    own = os.getpid()
    runner: Process | None = None
    processes = []
    for process in found.values():
        if not process.alive or process.pid == own:
            continue
        if (process.pid, process.start_ticks) == (identity.runner.pid, identity.runner.start_ticks):
            runner = process
        else:
            processes.append(process)
    return Members(runner, tuple(processes), unsure, proven)


def _names(processes: Sequence[Process]) -> str:
    return ", ".join(map(str, processes[:4])) + (", ..." if len(processes) > 4 else "")


def _verdict(session: Session, inside: Sequence[Process], identity: Identity) -> Verdict:
    """Whether the processes with this session number are in our session (see identity)."""
    if not any(process.alive for process in inside):
        return Verdict.DIFFERENT
    leader = next((process for process in inside if process.pid == session.pid), None)
    if leader is not None and session.start_ticks is not None:
        # The number leads a session again only after ours had become empty.
        ours = leader.start_ticks == session.start_ticks and is_still(leader)
        return Verdict.SAME if ours else Verdict.DIFFERENT
    if leader is not None:
        return Verdict.CANNOT_TELL
    recorded = {(known.pid, known.start_ticks) for known in identity.commands}
    anchors = (
        process
        for process in inside
        if (process.pid, process.start_ticks) in recorded or _was_inside(process, session)
    )
    return Verdict.SAME if any(map(is_still, anchors)) else Verdict.CANNOT_TELL


def _was_inside(process: Process, session: Session) -> bool:
    """Whether this process, now in a session of that number, was there while it was ours."""
    if session.start_ticks is None:
        return False
    return session.start_ticks <= process.start_ticks < session.alive_at_ticks


def _add_commands(identity: Identity, found: dict[int, Process], unsure: list[str]) -> None:
    """Add commands that left the session: each is written down by itself."""
    for known in identity.commands:
        if known.pid in found:
            continue
        match verify(known.pid, known.start_ticks, identity.boot_id):
            case Verdict.SAME:
                with contextlib.suppress(OSError):
                    process = read_process(known.pid)
                    if process is not None and process.start_ticks == known.start_ticks:
                        found[known.pid] = process
            case Verdict.CANNOT_TELL:
                unsure.append(
                    f"process {known.pid} lives, and whether it is {known.name!r} cannot be told"
                )
            case Verdict.DIFFERENT:
                pass


def _add_cgroup(identity: Identity, found: dict[int, Process]) -> None:
    cgroup = identity.cgroup
    if cgroup is None:
        return
    try:
        if os.stat(cgroup.path).st_ino != cgroup.inode:
            return
        for folder, _, _ in os.walk(cgroup.path):
            for pid in _cgroup_pids(folder):
                process = read_process(pid)
                # Listed before and after it was read: the number was the same process's.
                if process is not None and pid in _cgroup_pids(folder):
                    found.setdefault(pid, process)
    except OSError:
        return


def _cgroup_pids(folder: str) -> frozenset[int]:
    with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
        return frozenset(int(line) for line in file)


def _add_descendants(table: Sequence[Process], found: dict[int, Process]) -> None:
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.ppid, []).append(process)
    todo = list(found.values())
    while todo:
        parent = todo.pop()
        new = [child for child in children.get(parent.pid, ()) if child.pid not in found]
        if new and is_still(parent):
            found.update((child.pid, child) for child in new)
            todo.extend(new)


def send_signal(process: Process, number: int) -> bool:
    """Signal exactly this process; False if it is no longer there."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_still(process):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


@dataclass(slots=True)
class Purge:
    """Kills a shard's processes in steps that never wait; `everything` includes its runner."""

    everything: bool
    killed: dict[tuple[int, int], Process] = field(default_factory=dict)
    _frozen: set[tuple[int, int]] = field(default_factory=set)
    _rounds: int = 0

    def step(self, identity: Identity) -> tuple[Members, Identity]:
        """Freeze what is new, or kill all; done when the members returned hold no process.

        The identity comes back with the moment up to which its sessions were proven.
        """
        before_ticks = boot_ticks()
        seen = members(identity)
        identity = identity.seen_at(seen.proven_sessions, before_ticks)
        targets = self._targets(seen)
        new = [p for p in targets if (p.pid, p.start_ticks) not in self._frozen]
        self._rounds += 1
        if new and self._rounds % FREEZE_ROUNDS_MAX:
            for process in new:
                self._frozen.add((process.pid, process.start_ticks))
                _try_signal(process, signal.SIGSTOP)
        else:
            for process in targets:
                if _try_signal(process, signal.SIGKILL):
                    self.killed[process.pid, process.start_ticks] = process
        return seen, identity

    def _targets(self, seen: Members) -> tuple[Process, ...]:
        if self.everything and seen.runner is not None:
            return (*seen.processes, seen.runner)
        return seen.processes


def _try_signal(process: Process, number: int) -> bool:
    try:
        return send_signal(process, number)
    except PermissionError:
        return False  # it stays among the members, and is named as what is left


def kill_members(identity: Identity, deadline_s: float) -> Killed:
    """Kill what is certainly this shard's, its runner too, until nothing is left or the deadline.

    Blocks for up to `deadline_s`: call it from a thread.
    """
    purge = Purge(everything=True)
    end_s = time.monotonic() + deadline_s
    while True:
        seen, identity = purge.step(identity)
        left = seen.processes if seen.runner is None else (*seen.processes, seen.runner)
        if not left or time.monotonic() >= end_s:
            return Killed(tuple(purge.killed.values()), left, seen.unsure)
        time.sleep(PURGE_STEP_S)
