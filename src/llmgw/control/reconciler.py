"""The loop that decides: view, decide, save, then assignments and a snapshot; each turn anew.

Nothing of a decision is sent before it is saved, and nothing at all while it says to hold. A
standby takes the same turns up to the decision, so that it can show what there is, and applies
none.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.control.fleet import Desired, Fleet, News
from llmgw.control.leader import Leader
from llmgw.control.links import AgentLinks
from llmgw.control.messages import Assigned, LeadTaken, Message
from llmgw.control.ports import Entropy, LeadPort, StorePort
from llmgw.control.publisher import Publisher
from llmgw.control.registry import Registry
from llmgw.control.wanted import Wanted, WantedReader
from llmgw.core.errors import LlmgwError, StorageError
from llmgw.core.fleet.assignment import Assignment
from llmgw.core.fleet.decision import Decision, Duty, Happened
from llmgw.core.fleet.keys import engine_key
from llmgw.core.fleet.reconcile import decide
from llmgw.core.fleet.view import Planner, Rules, View
from llmgw.core.ids import ID_BYTES, LinkId, NodeId, ReplicaId, id_from
from llmgw.runtime.clock import Clock
from llmgw.runtime.tasks import keep_level
from llmgw.store.errors import StaleTermError
from llmgw.store.events import NewEvent

logger = logging.getLogger(__name__)

PERIOD_S: Final = 5.0
STEP_S_MAX: Final = 30.0
GATHER_S: Final = 0.02
"""Messages that come at once, as after a restart, are decided on at once."""
FRESH_IDS: Final = 64
"""New replicas that one decision may make."""
GATEWAY_FORGOTTEN_S: Final = 3_600.0
"""A gateway that was away for so long is not waited for any more; it may come back as it is."""
TOLD_MAX: Final = 4_096
"""Subjects of which the last event is remembered, so that it is not stored again each turn."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The last turn, for those who show it."""

    view: View
    decision: Decision
    wanted: Wanted
    term: int
    """0 where this control plane did not lead."""


@dataclass(slots=True)
class Figures:
    """What the metrics count."""

    turns: int = 0
    turns_failed: int = 0
    turn_s_last: float = 0.0


class _Told:
    """What was stored of each subject last: what holds on is no event at every turn."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._states: dict[str, bool] = {}

    def fresh(self, decision: Decision) -> list[Happened]:
        """Return what is news in a decision."""
        news = [one for one in decision.happened if self._last.get(one.subject) != one.what]
        for name, why, began, ended in _states(decision):
            if bool(why) != self._states.get(name, False):
                news.append(Happened(name, f"{began}: {why}" if why else ended))
        return news

    def remember(self, decision: Decision) -> None:
        """Take a decision for told."""
        for one in decision.happened:
            self._last.pop(one.subject, None)
            self._last[one.subject] = one.what
        while len(self._last) > TOLD_MAX:
            del self._last[next(iter(self._last))]
        self._states = {name: bool(why) for name, why, _, _ in _states(decision)}


def _states(decision: Decision) -> tuple[tuple[str, str, str, str], ...]:
    return (
        ("control plane", decision.hold, "waits before it acts", "has waited, and acts"),
        ("replacing", decision.brake, "is held", "goes on, enough nodes are heard again"),
    )


class Reconciler:
    """Decides. The only one who writes placements, sends assignments and publishes."""

    name = "reconciler"

    def __init__(
        self,
        store: StorePort,
        fleet: Fleet,
        parts: "Parts",
        plan: Planner,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._leader = parts.leader
        self._links = parts.links
        self._publisher = parts.publisher
        self._reader = parts.reader
        self._registry = parts.registry
        self._rules = parts.rules
        self._secret = parts.secret
        self._wake = parts.wake
        self._plan = plan
        self._clock = clock
        self._entropy = entropy
        self._lead: LeadPort | None = None
        self._leads_since_s = clock.monotonic_s()
        self._told = _Told()
        self._alarm: asyncio.TimerHandle | None = None
        self.seen: Seen | None = None
        self.figures = Figures()
        self.trouble = ""
        """Why the last turn failed; empty while all is well."""
        self.turned = asyncio.Event()
        """Set and renewed after every turn, for those who wait for its outcome."""
        self.turned_once = asyncio.Event()

    async def run(self) -> None:
        """Take turns until cancelled."""
        try:
            await keep_level(
                self._counted_turn, self._wake, PERIOD_S, STEP_S_MAX, self._clock, "reconciling"
            )
        finally:
            self._set_alarm(None)

    async def _counted_turn(self) -> None:
        await self._clock.sleep(GATHER_S)
        self._wake.clear()
        before_s = self._clock.monotonic_s()
        self.figures.turns += 1
        trouble = "a turn was cut short; the log says more"
        try:
            await self.turn()
            trouble = ""
        except LlmgwError as error:
            trouble = str(error)
            raise
        finally:
            self.trouble = trouble
            self.figures.turns_failed += bool(trouble)
            self.figures.turn_s_last = self._clock.monotonic_s() - before_s
        turned, self.turned = self.turned, asyncio.Event()
        turned.set()

    async def turn(self) -> None:
        """View, decide, and, where this control plane leads, save and send."""
        lead = self._leader.lead
        if lead is not self._lead:
            self._begin(lead)
        wanted = await self._reader.read(lead)
        if lead is not None:
            await self._raise_term(lead)
        links = self._fleet.heard_links()
        view = self._view(wanted)
        decision = decide(view, self._clock.wall_s(), self._plan)
        seen = Seen(view, decision, wanted, lead.term if lead is not None else 0)
        if lead is not None:
            try:
                await self._apply(lead, seen, links)
            except StorageError:
                self.seen = seen  # what cannot be written down is true all the same
                raise
        self.seen = seen
        self.turned_once.set()
        self._set_alarm(decision.wake_s)

    def _begin(self, lead: LeadPort | None) -> None:
        self._lead = lead
        self._told = _Told()
        self._publisher.stand_down()
        if lead is not None:
            self._leads_since_s = self._clock.monotonic_s()
            self._take(LeadTaken())

    def _take(self, message: Message) -> None:
        self._fleet.take(message, self._clock.monotonic_s())

    def _view(self, wanted: Wanted) -> View:
        fresh = (id_from(self._entropy(ID_BYTES)) for _ in range(FRESH_IDS))
        desired = Desired(
            wanted.catalog,
            wanted.intents,
            self._leads_since_s,
            self._store.usage is not None,
            self._rules,
            tuple(ReplicaId(id_) for id_ in fresh),
        )
        return self._fleet.view(self._clock.monotonic_s(), self._clock.wall_s(), desired)

    async def _raise_term(self, lead: LeadPort) -> None:
        """Go past every other leader's term, or those who have obeyed it would ignore ours."""
        highest = self._fleet.term_to_pass(lead.term)
        if not highest:
            return
        old = lead.term
        try:
            new = await lead.raise_past(highest)
        except StaleTermError:
            self._leader.stand_down()
            raise
        logger.warning(
            "an agent or a gateway has obeyed another leader's term %s, and this one's is %s (its "
            "store was restored, or there is or was none): leading on with term %s",
            highest,
            old,
            new,
        )

    # -- applying

    async def _apply(self, lead: LeadPort, seen: Seen, links: Mapping[NodeId, LinkId]) -> None:
        view, decision, wanted = seen.view, seen.decision, seen.wanted
        await self._save(lead, decision)
        if self._leader.lead is not lead:
            return
        if decision.saves or decision.forgets:
            self._wake.set()  # the next view has them: a drain that has just begun may be over
        if not decision.hold:
            self._assign(lead.term, decision, links)
        self._publisher.publish(lead.term, wanted.catalog, decision, wanted.keys, self._secret)
        await self._forget_gateways(view)

    async def _forget_gateways(self, view: View) -> None:
        gone = [g.gateway for g in view.gateways if g.silent_s > GATEWAY_FORGOTTEN_S]
        if gone:
            await self._registry.forget_gateways(gone)
            what = f"was not heard for {GATEWAY_FORGOTTEN_S:.0f} s and is forgotten"
            told = [Happened(f"gateway {gateway}", what) for gateway in gone]
            await self._store_events(self._own_events(told))

    async def _save(self, lead: LeadPort, decision: Decision) -> None:
        happened, news = self._told.fresh(decision), self._fleet.news()
        events = [*self._events(news), *self._own_events(happened)]
        try:
            if decision.saves or decision.forgets:
                await self._reader.save(lead.term, decision, events)
            elif events:
                await self._store_events(events)
        except StaleTermError:
            self._leader.stand_down()
            raise
        self._told.remember(decision)
        self._fleet.forget_news(news)
        for one in happened:
            logger.info("%s: %s", one.subject, one.what)

    async def _store_events(self, events: list[NewEvent]) -> None:
        # An event that cannot be stored holds up nothing; the log has it.
        try:
            await self._store.events.add(events)
        except StorageError as error:
            for event in events:
                logger.warning("%s: %s (not stored: %s)", event.subject, event.what, error)

    def _own_events(self, happened: Iterable[Happened]) -> list[NewEvent]:
        wall_s = self._clock.wall_s()
        return [NewEvent(one.subject, one.what, wall_s) for one in happened]

    def _events(self, news: Iterable[News]) -> list[NewEvent]:
        offset_s = self._clock.wall_s() - self._clock.monotonic_s()
        return [
            NewEvent(one.subject, one.what, one.at_s + offset_s, one.source, one.sequence)
            for one in news
        ]

    def _assign(self, term: int, decision: Decision, links: Mapping[NodeId, LinkId]) -> None:
        for node, duty in decision.duties.items():
            link = links.get(node)
            # Another link than the one that was decided on has yet to report.
            if link is None or self._fleet.link_of(node) != link:
                continue
            keys = self._keys(duty)
            sent = self._fleet.sent(node)
            if sent is not None and (sent.term, sent.shards, sent.keys, sent.keep) == (
                term,
                duty.shards,
                keys,
                duty.keep,
            ):
                continue
            generation = self._fleet.next_generation(node)
            assignment = Assignment(term, generation, duty.shards, keys, duty.keep)
            self._take(Assigned(link, assignment))
            self._links.assign(link, assignment)

    def _keys(self, duty: Duty) -> dict[ReplicaId, str]:
        if self._secret is None:
            return {}
        return {spec.replica: engine_key(self._secret, spec.replica) for spec in duty.shards}

    def _set_alarm(self, wake_s: float | None) -> None:
        """Wake up earlier than the period where a deadline asks for it."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if wake_s is not None and wake_s < PERIOD_S:
            self._alarm = asyncio.get_running_loop().call_later(wake_s, self._wake.set)


@dataclass(frozen=True, slots=True)
class Parts:
    """Whom a reconciler works with."""

    leader: Leader
    links: AgentLinks
    publisher: Publisher
    reader: WantedReader
    registry: Registry
    wake: asyncio.Event
    secret: bytes | None
    rules: Rules = field(default_factory=Rules)
