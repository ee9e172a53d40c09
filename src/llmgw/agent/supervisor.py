"""Owns the runs of this node: adopts what is there, then does what the assignment says.

At its start it takes hold of every run that the disk knows, before the first report. Until an
assignment came it keeps all and starts none. From then on, whenever it is woken and at least every
few seconds, it compares assignment and runs anew and acts on the difference; nothing is remembered
of what it did before, so doing it twice is the normal case.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llmgw.agent import gpus
from llmgw.agent.burial import Burial
from llmgw.agent.obedience import Claim
from llmgw.agent.pruning import Pruning, to_prune
from llmgw.agent.runs import Found, shard_key
from llmgw.agent.shard import Shard, Tools
from llmgw.core.errors import StorageError
from llmgw.core.fleet.assignment import Assignment, ShardSpec, difference
from llmgw.core.fleet.report import ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import ShardKey
from llmgw.runtime.tasks import OwnedTasks, keep_level

logger = logging.getLogger(__name__)

PERIOD_S: Final = 5.0
STEP_S_MAX: Final = 120.0
CONFIRM_S_MAX: Final = 10.0
"""The first report waits so long at most until each run was looked at by this agent itself."""
SHARDS_MAX: Final = 1024
WHOLE: Final = 1.0 + 1e-6
"""Of a GPU, with room for how fractions add up."""


@dataclass(frozen=True, slots=True)
class _Assigned:
    """What this node is to run, and the claim with whose link that ends."""

    claim: Claim
    assignment: Assignment


class Supervisor:
    """Starts and stops shards; the one owner of the runs."""

    name = "supervisor"

    def __init__(self, tools: Tools, grants: gpus.Gpus, pruning: Pruning) -> None:
        self._tools = tools
        self._gpus = grants
        self._pruning = pruning
        self._burial = Burial(tools)
        self._shards: dict[ShardKey, Shard] = {}
        self._assigned: _Assigned | None = None
        self._acted: _Assigned | None = None
        self._refused: dict[str, str] = {}
        self._waiting: dict[str, str] = {}
        self._fault = ""
        self._pruned: tuple[set[str], frozenset[ShardKey]] | None = None
        """For which ended runs and which assigned shards it was last done."""
        self._wake = asyncio.Event()
        self._tasks = OwnedTasks("shards", tasks_max=SHARDS_MAX)
        self.adopted = asyncio.Event()
        """Every run of the disk is known and was looked at: reports may be sent."""

    async def run(self) -> None:
        """Supervise until cancelled; the shards go on."""
        async with self._tasks:
            await self._adopt()
            self.adopted.set()
            self._tools.pulse.beat()
            await keep_level(
                self._step, self._wake, PERIOD_S, STEP_S_MAX, self._tools.clock, self.name
            )

    def assign(self, claim: Claim, assignment: Assignment) -> None:
        """Take what this node is to run while the link of that claim lives."""
        self._assigned = _Assigned(claim, assignment)
        self._wake.set()

    def release(self, claim: Claim) -> None:
        """Let go of what a link assigned, if it was the last to: keep all, start none.

        Whoever sent it may have forgotten it by the time of the next link (ADR 0002).
        """
        if self._assigned is not None and self._assigned.claim is claim:
            self._assigned = self._acted = None
            self._refused, self._waiting = {}, {}

    def wake(self) -> None:
        """Something that a start waited for may have happened."""
        self._wake.set()

    def generation(self, claim: Claim | None) -> int:
        """Return which of a link's assignments was acted on in full, 0 if none was."""
        acted = self._acted
        return acted.assignment.generation if acted is not None and acted.claim is claim else 0

    @property
    def refused(self) -> Mapping[str, str]:
        """Assigned shards that will never be started, with the reason."""
        return self._refused

    @property
    def waiting(self) -> Mapping[str, str]:
        """Assigned shards that are not started yet, and what they wait for."""
        return self._waiting

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the runs as a whole."""
        return (self._fault,) if self._fault else ()

    def reports(self) -> tuple[ShardReport, ...]:
        """Return everything that runs here or has ended here, by key."""
        own = [shard.report() for shard in self._shards.values()]
        return tuple(sorted((*own, *self._burial.reports()), key=lambda report: report.key))

    def shard(self, key: ShardKey) -> Shard | None:
        """Return a shard that this node knows."""
        return self._shards.get(key)

    def runs(self) -> gpus.Runs:
        """Return the runs as the GPUs' owner has to know them."""
        live = {s.name: s.sessions for s in self._shards.values() if not s.over and not s.blind}
        ended = {s.name: s.sessions for s in self._shards.values() if s.over}
        blind = {shard.name for shard in self._shards.values() if shard.blind}
        return gpus.Runs(live, ended | self._burial.ended, frozenset(blind | self._burial.blind))

    # Adopting.

    async def _adopt(self) -> None:
        try:
            names = await self._tools.pool.run(self._tools.runs.names)
        except StorageError as error:
            self._fault = str(error)
            self._tools.events.say("runs", self._fault)
            raise
        # All are known before the first await of any of them.
        found = [await self._tools.pool.run(self._tools.runs.read, name) for name in names]
        rest = [one for one in found if not self._take_up(one)]
        for one in rest:
            await self._without_spec(one)
        await self._confirmed()

    def _take_up(self, found: Found) -> bool:
        """Take hold of a run that can be described; False if there is none."""
        if found.spec is None or found.is_remnant:
            return False
        self._keep(Shard.of(found, found.spec, self._tools))
        self._gpus.remember(found.name, found.spec.gpus)
        return True

    def _keep(self, shard: Shard) -> None:
        self._shards[shard.spec.key] = shard
        task = self._tasks.start(shard.run(), shard.name)
        task.add_done_callback(lambda _: self.wake())

    async def _without_spec(self, found: Found) -> None:
        if shard_key(found.name) is None and found.identity is None and not found.identity_broken:
            logger.warning("%s in the runs directory is not ours; left alone", found.name)
            return
        await self._burial.bury(found)

    async def _confirmed(self) -> None:
        try:
            async with asyncio.timeout(CONFIRM_S_MAX):
                for shard in tuple(self._shards.values()):
                    await shard.confirmed.wait()
        except TimeoutError:
            late = [shard.name for shard in self._shards.values() if not shard.confirmed.is_set()]
            self._tools.events.say("runs", f"not looked at yet: {', '.join(late)}")

    # Acting.

    async def _step(self) -> None:
        for mended in await self._burial.again():
            self._take_up(mended)
        assigned = self._assigned
        if assigned is None:
            return
        assignment = assigned.assignment
        present = [key for key, shard in self._shards.items() if not self._is_prepared(shard)]
        ended = [key for key, shard in self._shards.items() if shard.over]
        buried = self._burial.keys()
        before = (self._refused, self._waiting, self._acted)
        todo = difference(assignment, [*present, *buried], [*ended, *self._burial.ended_keys()])
        for key in todo.stop:
            if (shard := self._shards.get(key)) is not None:
                shard.end()
        self._withdraw(assignment)
        waiting = dict(todo.blocked)
        for spec in todo.start:
            if why := self._in_the_way(spec):
                waiting[spec.key] = why
            else:
                self._start(spec, assignment.keys.get(spec.replica))
        self._refused = {str(key): why for key, why in todo.refused.items()}
        self._waiting = {str(key): why for key, why in waiting.items()}
        self._acted = assigned
        if (self._refused, self._waiting, self._acted) != before:
            self._tools.pulse.beat()
        await self._prune(assignment)

    def _in_the_way(self, spec: ShardSpec) -> str:
        """Return why a shard cannot have its GPUs yet, whatever was known when it was placed."""
        others = [s for s in self._shards.values() if not s.over and s.spec.key != spec.key]
        for uuid in spec.gpus:
            holders = [shard for shard in others if uuid in shard.spec.gpus]
            share = spec.memory_share + sum(shard.spec.memory_share for shard in holders)
            if holders and share > WHOLE:
                names = ", ".join(shard.name for shard in holders)
                return f"waits for {names} to give {uuid} back"
        return self._gpus.why_not(spec.gpus, {str(spec.key), *(shard.name for shard in others)})

    def _is_prepared(self, shard: Shard) -> bool:
        """Whether an earlier agent made its directory, and no runner has come so far."""
        return shard.phase is Phase.WAITING and not shard.begun and not shard.over

    def _withdraw(self, assignment: Assignment) -> None:
        wanted = {spec.key for spec in assignment.shards} | set(assignment.keep)
        for key, shard in self._shards.items():
            if self._is_prepared(shard) and key not in wanted:
                shard.end()

    def _start(self, spec: ShardSpec, key: str | None) -> None:
        prepared = self._shards.get(spec.key)
        if prepared is not None:
            prepared.resume()
            return
        shard = Shard(spec, key, self._tools)
        shard.begin()
        self._keep(shard)
        self._tools.pulse.beat()

    async def _prune(self, assignment: Assignment) -> None:
        """Forget and remove ended runs that nobody needs any more."""
        over = {shard.name for shard in self._shards.values() if shard.over}
        over |= set(self._burial.ended)
        over = {name for name in over if not self._gpus.owes(name)}
        known = frozenset({*assignment.keep, *(spec.key for spec in assignment.shards)})
        if (over, known) == self._pruned:
            return
        self._pruned = (over, known)
        sizes = {
            name: await self._tools.pool.run(self._tools.runs.used_bytes, name) for name in over
        }
        for name in to_prune(sizes, known, self._pruning):
            try:
                await self._tools.pool.run(self._tools.runs.remove, name)
            except StorageError as error:
                logger.warning("%s", error)
                continue
            self._burial.forget(name)
            if (key := shard_key(name)) is not None:
                self._shards.pop(key, None)
