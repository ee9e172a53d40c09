"""Ends everything that runs on a state directory, where no agent does and the work itself ends.

An agent's end never ends an engine; the end of `llmgw up` does. It asks each runner for an orderly
stop, and kills what a run's own identity proves to be its own where no runner answers or time is
up. What cannot be told is left alone and named.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent.files import RealDisk
from llmgw.agent.identity import StateLock
from llmgw.agent.runner_link import RunnerAwayError, RunnerDoor
from llmgw.agent.runs import Found, RunsFolder
from llmgw.core.errors import StorageError
from llmgw.runner import record
from llmgw.runtime.clock import Clock
from llmgw.runtime.threads import ThreadPool

LOOK_S: Final = 0.1
GRACE_S: Final = 30.0
"""For a run whose spec does not say."""
GRACE_MARGIN_S: Final = 10.0
KILL_S_MAX: Final = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Left:
    """A run of which something may still live, and why."""

    run: str
    why: str


async def clear(
    state: Path, hurry: asyncio.Event, say: Say, pool: ThreadPool, clock: Clock
) -> tuple[Left, ...]:
    """End all runs, at once where `hurry` is set; return what could not be ended.

    Raises AnotherAgentError where an agent still works there, and StorageError.
    """
    if not await pool.run(state.exists):
        return ()
    lock = StateLock(state)
    await pool.run(lock.take)
    try:
        clearing = _Clearing(RunsFolder(state, RealDisk()), hurry, say, pool, clock)
        return await clearing.all()
    finally:
        lock.give_back()


class _Clearing:
    def __init__(
        self, runs: RunsFolder, hurry: asyncio.Event, say: Say, pool: ThreadPool, clock: Clock
    ) -> None:
        self._runs = runs
        self._door = RunnerDoor(pool)
        self._hurry = hurry
        self._say = say
        self._pool = pool
        self._clock = clock

    async def all(self) -> tuple[Left, ...]:
        names = await self._pool.run(self._runs.names)
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(self._end(name), name=f"end {name}") for name in names]
        return tuple(left for end in ends if (left := end.result()) is not None)

    async def _end(self, name: str) -> Left | None:
        try:
            found = await self._pool.run(self._runs.read, name)
            if found.untouched:
                if await self._pool.run(self._runs.give_up, name):
                    return None
                found = await self._identified(name)
        except StorageError as error:
            return Left(name, str(error))
        if found.identity is None:
            return _cannot_say_whose(found)
        return await self._end_known(found, found.identity)

    async def _identified(self, name: str) -> Found:
        """Wait for a runner that holds its lock to say who it is."""
        deadline_s = self._clock.monotonic_s() + KILL_S_MAX
        while True:
            found = await self._pool.run(self._runs.read, name)
            if found.identity is not None or self._clock.monotonic_s() >= deadline_s:
                return found
            await self._clock.sleep(LOOK_S)

    async def _end_known(self, found: Found, identity: record.Identity) -> Left | None:
        alive = await self._pool.run(record.members, identity)
        if _is_empty(alive):
            return _doubt(found.name, alive)
        model = found.spec.model if found.spec is not None else "a model that cannot be read"
        self._say(f"stopping {found.name} ({model})")
        grace_s = found.spec.stop_grace_s if found.spec is not None else GRACE_S
        if await self._asked(found.name):
            alive = await self._emptied(identity, grace_s + GRACE_MARGIN_S)
        if not _is_empty(alive):
            killed = await self._pool.run(record.kill_members, identity, KILL_S_MAX)
            if killed.left:
                return Left(found.name, f"{_named(killed.left)} cannot be killed")
            self._say(f"killed {found.name}: {_named(killed.killed)}")
            alive = await self._pool.run(record.members, identity)
        return _doubt(found.name, alive)

    async def _asked(self, name: str) -> bool:
        if self._hurry.is_set():
            return False
        try:
            await self._door.stop(self._runs.folder(name))
        except RunnerAwayError:
            return False
        return True

    async def _emptied(self, identity: record.Identity, seconds: float) -> record.Members:
        deadline_s = self._clock.monotonic_s() + seconds
        while True:
            alive = await self._pool.run(record.members, identity)
            late = self._hurry.is_set() or self._clock.monotonic_s() >= deadline_s
            if _is_empty(alive) or late:
                return alive
            await self._clock.sleep(LOOK_S)


def _doubt(name: str, alive: record.Members) -> Left | None:
    return Left(name, "; ".join(alive.unsure)) if alive.unsure else None


def _cannot_say_whose(found: Found) -> Left | None:
    if not found.faults:
        return None
    faults = "; ".join(found.faults)
    return Left(found.name, f"whose processes these are cannot be read: {faults}")


def _is_empty(alive: record.Members) -> bool:
    return alive.runner is None and not alive.processes


def _named(processes: tuple[record.Process, ...]) -> str:
    return ", ".join(map(str, processes))
