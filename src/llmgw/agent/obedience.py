"""Whose assignments are obeyed: the highest term's, of one store, from links that live.

A term is written down before anything is done in its name; where that fails, nothing is done, it
is said, and tried again. So a leader that was replaced cannot move this node any more.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from llmgw.agent.identity import Obeyed, Terms
from llmgw.agent.pulse import Events
from llmgw.core.errors import StorageError
from llmgw.core.fleet.assignment import Assignment
from llmgw.runtime.clock import Clock
from llmgw.runtime.tasks import keep_level
from llmgw.runtime.threads import ThreadPool

RETRY_S: Final = 1.0
STEP_S_MAX: Final = 60.0
SUBJECT: Final = "obedience"


@dataclass(slots=True, eq=False)
class Claim:
    """What one link has said; of no worth any more when the link has ended."""

    store: str
    offered: Assignment | None = None
    """The newest of this link; a lower generation is an old one."""
    taken: bool = False
    warning: str = ""


class Doer(Protocol):
    """Does what is assigned."""

    def assign(self, claim: Claim, assignment: Assignment) -> None:
        """Do this while the claim's link lives."""
        ...

    def release(self, claim: Claim) -> None:
        """Its link has ended."""
        ...


class Obedience:
    """Decides about assignments; the one writer of the term."""

    name = "obedience"

    def __init__(
        self,
        terms: Terms,
        doer: Doer,
        store_switch_s: float,
        events: Events,
        pool: ThreadPool,
        clock: Clock,
    ) -> None:
        self._terms = terms
        self._doer = doer
        self._store_switch_s = store_switch_s
        self._events = events
        self._pool = pool
        self._clock = clock
        self._claims: set[Claim] = set()
        """Of the links that live."""
        self._known_heard_s = clock.monotonic_s()
        """When the known store's control plane was last on a link; its absence counts from here."""
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()

    @property
    def obeyed(self) -> Obeyed:
        """The highest term obeyed, and whose."""
        return self._terms.obeyed

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with those who claim this node."""
        own = (self._terms.warning,) if self._terms.warning else ()
        return (*own, *sorted(claim.warning for claim in self._claims if claim.warning))

    async def run(self) -> None:
        """Try again what could not be obeyed, until cancelled."""
        await keep_level(self._again, self._wake, RETRY_S, STEP_S_MAX, self._clock, self.name)

    def opened(self, store: str) -> Claim:
        """A link begins; what it says later goes with the claim that is returned."""
        claim = Claim(store)
        self._claims.add(claim)
        return claim

    def closed(self, claim: Claim) -> None:
        """Its link has ended: what it still says is ignored, and its assignment ends with it."""
        self._claims.discard(claim)
        self._doer.release(claim)
        if claim.store == self.obeyed.store:
            self._known_heard_s = self._clock.monotonic_s()

    async def offer(self, claim: Claim, assignment: Assignment) -> None:
        """Take an assignment that came over a link, or say why not."""
        older = claim.offered
        if claim not in self._claims:
            return
        if older is not None and _order(assignment) <= _order(older):
            return
        claim.offered, claim.taken = assignment, False
        await self._consider(claim)

    async def _again(self) -> None:
        for claim in tuple(self._claims):
            await self._consider(claim)

    async def _consider(self, said: Claim) -> None:
        async with self._turn:
            offered = said.offered
            if offered is None or said.taken or said not in self._claims:
                return
            why = self._why_not(said, offered) or await self._written_down(said, offered)
            if said not in self._claims or said.offered is not offered:
                return  # it ended, or said something newer, while the disk was busy
            if why != said.warning and why:
                self._events.say(SUBJECT, why)
            said.warning = why
            if not why:
                said.taken = True
                self._doer.assign(said, offered)

    def _why_not(self, said: Claim, offered: Assignment) -> str:
        known = self.obeyed
        if said.store != known.store and known.term > 0 and self._is_claimed(known):
            return (
                f"two stores claim this node: {known.store or 'one without a name'} (obeyed, term"
                f" {known.term}) and {said.store or 'one without a name'} (ignored); remove the"
                " node from one of them"
            )
        if offered.term < known.term:
            return (
                f"an assignment of term {offered.term} was refused, since term {known.term} was"
                " obeyed already: its control plane is no leader any more, or its store is older"
            )
        return ""

    def _is_claimed(self, known: Obeyed) -> bool:
        """Whether the known store's control plane is there, or was until a moment ago."""
        if any(claim.store == known.store for claim in self._claims):
            return True
        silent_s = self._clock.monotonic_s() - self._known_heard_s
        return silent_s < self._store_switch_s

    async def _written_down(self, said: Claim, offered: Assignment) -> str:
        known = self.obeyed
        if (offered.term, said.store) == (known.term, known.store):
            return ""
        try:
            await self._pool.run(self._terms.raise_to, offered.term, said.store)
        except StorageError as error:
            return f"term {offered.term} cannot be obeyed, since it cannot be written down: {error}"
        return ""


def _order(assignment: Assignment) -> tuple[int, int]:
    return (assignment.term, assignment.generation)
