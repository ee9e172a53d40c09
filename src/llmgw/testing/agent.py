"""A fake agent end: attaches over the real link, obeys assignments, and misbehaves on request.

Its shards are records in memory that outlive its links, as runners outlive agents. Phases advance
as far as `until` says, through core's own transitions.
"""

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from llmgw.core.fleet.assignment import Assignment, ShardSpec, difference
from llmgw.core.fleet.hardware import Inventory
from llmgw.core.fleet.report import Event as Happening
from llmgw.core.fleet.report import Report, ShardReport
from llmgw.core.fleet.shard import (
    Event,
    Exited,
    LoadingSeen,
    Phase,
    ProbePassed,
    RendezvousOpen,
    StopWanted,
    next_phase,
)
from llmgw.core.fleet.view import ENDED
from llmgw.core.ids import ShardKey
from llmgw.runtime.clock import Clock, SystemClock
from llmgw.testing.fleet import inventory as some_inventory
from llmgw.wire.agent_link import ControlLink, dial_control
from llmgw.wire.dialing import DialOptions
from llmgw.wire.errors import LinkLostError, LinkRefusedError
from llmgw.wire.messages import Answer, Cancel, Hello, Question

_GOES_ON: Final[dict[Phase, Event]] = {
    Phase.WAITING: RendezvousOpen(),
    Phase.STARTING: LoadingSeen(),
    Phase.LOADING: ProbePassed(),
}
_ORDER: Final = (Phase.WAITING, Phase.STARTING, Phase.LOADING, Phase.READY)
_AGAIN_S: Final = 0.05


@dataclass(slots=True)
class FakeShard:
    """One shard's record."""

    spec: ShardSpec
    phase: Phase = Phase.WAITING
    why: str = "is new"
    key: str | None = None


class FakeAgent:
    """One node. `run` it as a task; everything else may be called at any moment."""

    def __init__(
        self,
        endpoint: str,
        node: str = "n1",
        *,
        inventory: Inventory | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.inventory = inventory or some_inventory(node)
        self.clock = clock or SystemClock()
        self.shards: dict[ShardKey, FakeShard] = {}
        self.starts: Counter[ShardKey] = Counter()
        self.assignments: list[Assignment] = []
        self.until = Phase.READY
        """How far a start goes by itself."""
        self.stops = True
        """Whether a stop succeeds."""
        self.obeys = True
        self.lines: tuple[str, ...] = ("one", "two", "three")
        """Of every shard's log."""
        self.no_log = ""
        """Why it has none; empty where it has."""
        self.term = 0
        self.store = ""
        self.generation = 0
        self.attached = 0
        """How many links there were."""
        self.refused = ""
        """Why the control plane did not take it the last time."""
        self.cancelled: list[int] = []
        self.busy = False
        """Whether it is attached or about to be."""
        self._events: list[Happening] = []
        self._away = False
        self._stir = asyncio.Event()
        self._link: ControlLink | None = None

    # -- what a test does to it

    def leave(self) -> None:
        """Be cut off; shards go on."""
        self._away = True
        if self._link is not None:
            self._link.end("cut off by the test")

    def come_back(self) -> None:
        """Attach again."""
        self._away = False

    def adopt(self, spec: ShardSpec, phase: Phase = Phase.READY, *, key: str | None = None) -> None:
        """Have a shard that nobody assigned."""
        self.shards[spec.key] = FakeShard(spec, phase, "was there before", key)
        self._stir.set()

    def fail(self, key: ShardKey, why: str = "the engine ended with status 1") -> None:
        """Let an engine end."""
        self._event(key, Exited(1), why)

    def go_on(self, until: Phase = Phase.READY) -> None:
        """Let starts go on, as far as `until`."""
        self.until = until
        self._progress()

    def happened(self, subject: str, what: str) -> None:
        """Report an event."""
        self._events.append(Happening(subject, what, 0.0, len(self._events) + 1))
        self._stir.set()

    @property
    def alive(self) -> list[ShardKey]:
        """What runs."""
        return sorted(key for key, shard in self.shards.items() if shard.phase not in ENDED)

    # -- what it does

    async def run(self) -> None:
        """Attach, again and again, until cancelled."""
        while True:
            if not self._away:
                self.busy = True
                with contextlib.suppress(LinkLostError):
                    await self._attach()
                self.busy = False
            await asyncio.sleep(_AGAIN_S)

    async def _attach(self) -> None:
        node = self.inventory
        hello = Hello(node.node, node.name, node.machine, node.boot, "test", self.term, self.store)
        try:
            async with dial_control(self.endpoint, hello, DialOptions(), self.clock) as link:
                self._link, self.refused = link, ""
                self.store = link.peer.store
                self.generation = 0  # an assignment ends with the link that it came by
                self.attached += 1
                self._stir.set()
                async with asyncio.TaskGroup() as group:
                    reports = group.create_task(self._report(link))
                    async for message in link:
                        match message:
                            case Assignment():
                                self._obey(message)
                            case Question():
                                await self._answer(link, message)
                            case Cancel():
                                self.cancelled.append(message.id)
                    reports.cancel()
        except LinkRefusedError as error:
            self.refused = str(error)
        finally:
            self._link = None

    async def _report(self, link: ControlLink) -> None:
        with contextlib.suppress(LinkLostError):
            while True:
                await self._stir.wait()
                self._stir.clear()
                await link.send(self.report())

    def report(self) -> Report:
        """Return everything it has and runs."""
        shards = tuple(
            ShardReport(
                key,
                shard.phase,
                shard.why,
                shard.spec,
                pid=4000,
                keyed=shard.key is not None,
                running=0,
            )
            for key, shard in sorted(self.shards.items())
        )
        return Report(
            self.inventory, shards, self.term, self.generation, events=tuple(self._events)
        )

    async def _answer(self, link: ControlLink, question: Question) -> None:
        count = int(question.options.get("lines", "100"))
        follows = question.options.get("follow") == "1"
        if self.no_log:
            await link.send(Answer(question.id, last=True, error=self.no_log))
            return
        await link.send(Answer(question.id, self.lines[-count:], last=not follows))

    async def say(self, question: int, *lines: str) -> None:
        """Go on with an answer that is followed."""
        assert self._link is not None
        await self._link.send(Answer(question, lines))

    def _obey(self, assignment: Assignment) -> None:
        if not self.obeys:
            return
        self.assignments.append(assignment)
        if assignment.term < self.term:
            self._stir.set()
            return
        self.term, self.generation = assignment.term, assignment.generation
        ended = [key for key, shard in self.shards.items() if shard.phase in ENDED]
        todo = difference(assignment, self.shards, ended)
        for spec in todo.start:
            self.starts[spec.key] += 1
            self.shards[spec.key] = FakeShard(spec, key=assignment.keys.get(spec.replica))
        for key in todo.stop:
            self._event(key, StopWanted(), "left the assignment")
            if self.stops and self.shards[key].phase is Phase.STOPPING:
                self._event(key, Exited(0), "stopped as asked")
        self._progress()

    def _progress(self) -> None:
        for shard in self.shards.values():
            while shard.phase in _GOES_ON and _before(shard.phase, self.until):
                shard.phase = next_phase(shard.phase, _GOES_ON[shard.phase])
                shard.why = f"is {shard.phase}"
        self._stir.set()

    def _event(self, key: ShardKey, event: Event, why: str) -> None:
        shard = self.shards[key]
        self.shards[key] = replace(shard, phase=next_phase(shard.phase, event), why=why)
        self._stir.set()


def _before(phase: Phase, until: Phase) -> bool:
    return _ORDER.index(phase) < _ORDER.index(until)
