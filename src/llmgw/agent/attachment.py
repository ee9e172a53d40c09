"""Keeps hold of one shard's runner: watches it, and sees that there is one while it is needed.

A start is "spawn a runner, then attach"; an agent's restart is "attach"; a runner that was killed
is "spawn another, then attach". So all are this one loop, and the runner's lock makes sure that
two of them never are. The owner is told what was seen; it decides what that means.
"""

from contextlib import aclosing
from pathlib import Path
from typing import Final, Protocol

from llmgw.agent.launcher import CannotSpawnError, Spawner, Started, why_ended
from llmgw.agent.runner_link import RunnerAwayError, RunnerDoor
from llmgw.agent.runs import Found, RunsFolder
from llmgw.runner import record
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.clock import Clock, Random
from llmgw.runtime.threads import ThreadPool

WATCH_S_MAX: Final = 600.0
"""A watch that brought nothing for so long is begun anew."""
SHOW_S_MAX: Final = 15.0
"""A new runner answers within this."""
SHOW_STEP_S: Final = 0.02
PATIENCE_S: Final = 2.0
"""A runner that lives and does not answer may just have started, or been killed."""
PATIENCE_STEP_S: Final = 0.1
KILL_S_MAX: Final = 10.0
RAW_BYTES_MAX: Final = 64 * 1024 * 1024
"""What raw output may hold while no runner lives to read it."""
STARTED_NOTHING: Final = frozenset(
    {record.ExitCode.USAGE, record.ExitCode.BROKEN, record.ExitCode.CANNOT_WRITE}
)


class Owner(Protocol):
    """Whose runner it is."""

    @property
    def stop_wanted(self) -> bool:
        """Whether the shard is to end."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing of it lives any more."""
        ...

    async def on_record(self, seen: record.Record, *, live: bool) -> None:
        """A runner says this now, or wrote it down before it was gone."""
        ...

    def on_takeover(self, pid: int) -> None:
        """Its runner was gone, and another one, with this pid, is there now."""
        ...

    def on_trouble(self, why: str) -> None:
        """There is no runner now, and why; the shard's processes live."""
        ...

    def on_blind(self, why: str) -> None:
        """Nobody can tell whether the shard's processes live; nothing was done to them."""
        ...

    def on_gone(self, why: str) -> None:
        """Nothing of the shard lives, and no runner saw it end."""
        ...

    def on_never_started(self, why: str) -> None:
        """No command of the shard was ever started, and none will be."""
        ...


class Attachment:
    """The hold on one runner; `step` is called again and again until the owner has seen the end."""

    def __init__(
        self,
        name: str,
        owner: Owner,
        runs: RunsFolder,
        spawner: Spawner,
        pool: ThreadPool,
        clock: Clock,
    ) -> None:
        self._name = name
        self._folder: Path = runs.folder(name)
        self._owner = owner
        self._runs = runs
        self._spawner = spawner
        self._pool = pool
        self._door = RunnerDoor(pool)
        self._clock = clock
        self._backoff = Backoff(0.5, 10.0)
        self._random = Random(name)
        self._failures = 0
        self._spawn_at_s = clock.monotonic_s()
        self.watches = False
        """Whether a runner is being watched: its words come, whatever became of its files."""
        self.may_start = False
        """Whether a runner may be started that has no earlier one: only when it is assigned."""

    async def stop(self) -> record.Record:
        """Ask the runner to end the shard; raise RunnerAwayError if there is none."""
        return await self._door.stop(self._folder)

    async def step(self) -> None:
        """Watch the runner to its end; if there is none, see what lives and start one."""
        if await self._watched() or not await self._without_runner():
            return
        if not await self._watched():
            await self._from_file()  # it has ended in between

    async def _watched(self) -> bool:
        """Watch the runner to its end; False if none answers."""
        try:
            async with aclosing(self._door.watch(self._folder, WATCH_S_MAX)) as records:
                async for seen in records:
                    self._failures, self.watches = 0, True
                    await self._owner.on_record(seen, live=True)
        except RunnerAwayError:
            return False
        finally:
            self.watches = False
        return True

    async def _without_runner(self) -> bool:
        """See what lives, and start a runner if one is needed; True if one answers then."""
        found = await self._from_file()
        if self._owner.over or self._clock.monotonic_s() < self._spawn_at_s:
            return False
        if found.untouched and not self.may_start:
            return False
        if found.identity is not None and (runner := await self._silent(found.identity)):
            if await self._door.answers(self._folder):
                return True
            self._owner.on_trouble(f"its runner, process {runner.pid}, does not answer")
            return False
        return await self._spawn(found)

    async def _silent(self, identity: record.Identity) -> record.Process | None:
        """Return the runner that lives and does not answer, after some patience; None if none."""
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        while True:
            runner = (await self._pool.run(record.members, identity)).runner
            late = self._clock.monotonic_s() >= deadline_s
            if runner is None or late or await self._door.answers(self._folder):
                return runner
            await self._clock.sleep(PATIENCE_STEP_S)

    async def _from_file(self) -> Found:
        """Read the files of the run, and show its last record."""
        found = await self._pool.run(self._runs.read, self._name)
        if found.seen is not None:
            await self._owner.on_record(found.seen, live=False)
        return found

    async def _spawn(self, found: Found) -> bool:
        self._failures += 1
        wait_s = self._backoff.wait_s(self._failures, self._random)
        self._spawn_at_s = self._clock.monotonic_s() + wait_s
        try:
            started = await self._spawner.start(self._folder)
        except CannotSpawnError as error:
            await self._judge(found, str(error), nothing_started=True)
            return False
        if await self._shows_itself(started):
            if found.seen is not None:
                self._owner.on_takeover(started.pid)
            return True
        if not started.ended.is_set():
            self._owner.on_trouble(f"its runner, process {started.pid}, does not answer")
            return False
        if started.status in {record.ExitCode.OWNED, record.ExitCode.ENDED_BEFORE, 0}:
            return True  # another runner has it, or the record says how it ended
        why = await self._pool.run(why_ended, self._folder, started.status)
        again = await self._pool.run(self._runs.read, self._name)
        await self._judge(again, why, nothing_started=started.status in STARTED_NOTHING)
        return False

    async def _shows_itself(self, started: Started) -> bool:
        """Wait until the runner answers; False if it ended before, or does not answer in time."""
        deadline_s = self._clock.monotonic_s() + SHOW_S_MAX
        while self._clock.monotonic_s() < deadline_s and not started.ended.is_set():
            if await self._door.answers(self._folder):
                return True
            await self._clock.sleep(SHOW_STEP_S)
        return False

    async def _judge(self, found: Found, why: str, *, nothing_started: bool) -> None:
        """No runner can be had: say what is known of the shard without one."""
        if found.seen is not None and found.seen.phase is record.Phase.ENDED:
            await self._owner.on_record(found.seen, live=False)
            return
        if found.identity is None:
            if found.untouched and nothing_started:
                self._owner.on_never_started(why)
            else:
                self._owner.on_blind(f"{why}; {'; '.join(found.faults) or 'no identity is there'}")
            return
        alive = await self._pool.run(record.members, found.identity)
        if alive.unsure:
            self._owner.on_blind(f"{why}; {'; '.join(alive.unsure)}")
        elif not alive.processes:
            self._owner.on_gone(why)
        elif self._owner.stop_wanted:
            killed = await self._pool.run(record.kill_members, found.identity, KILL_S_MAX)
            self._owner.on_trouble(f"{why}; killed {len(killed.killed)} of its processes")
            self._spawn_at_s = self._clock.monotonic_s()
        else:
            self._owner.on_trouble(f"{why}; its processes go on without a runner")
            await self._pool.run(_bound_output, self._folder)


def _bound_output(folder: Path) -> None:
    try:
        record.truncate_raw(folder, RAW_BYTES_MAX)
    except OSError:
        return  # a disk that refuses; the next round tries again
