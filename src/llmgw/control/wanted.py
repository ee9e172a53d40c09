"""What the store says is wanted, read again at every few turns and at once after an edit.

Intents are the leader's own: it reads them when it begins to lead and after a save that failed, and
otherwise knows what it saved. A standby reads them each time, to show them.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from llmgw.control.ports import LeadPort, StorePort
from llmgw.control.registry import Registry
from llmgw.core.errors import DependencyError
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.decision import Decision
from llmgw.core.fleet.intent import Intent
from llmgw.core.ids import ReplicaId
from llmgw.core.traffic.snapshot import ApiKey
from llmgw.runtime.clock import Clock
from llmgw.store.events import NewEvent
from llmgw.store.placements import Broken

logger = logging.getLogger(__name__)

REREAD_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything that was read, with what the leader has saved since."""

    catalog: Catalog = field(default_factory=Catalog)
    keys: tuple[ApiKey, ...] = ()
    intents: Mapping[ReplicaId, Intent] = field(default_factory=dict)
    broken: tuple[Broken, ...] = ()


class WantedReader:
    """Keeps a Wanted current. A store that cannot be read leaves what was read before."""

    def __init__(self, store: StorePort, registry: Registry, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._wanted: Wanted | None = None
        self._read_s = 0.0
        self._edits = 0
        self._edits_read = -1
        self._intents_of: LeadPort | None = None
        """The lead under which the intents were read, and are still what is stored."""
        self._told: set[Broken] = set()
        self.trouble = ""
        """Why the store cannot be read; empty while all is well."""

    def edited(self) -> None:
        """Read everything again at the next turn."""
        self._edits += 1

    async def read(self, lead: LeadPort | None) -> Wanted:
        """Return what is wanted; raise only where nothing could be read yet."""
        now_s = self._clock.monotonic_s()
        known = self._wanted if self._intents_of is lead else None
        edits = self._edits  # one that comes while this reads is for the next turn
        if known is not None and edits == self._edits_read and now_s - self._read_s < REREAD_S:
            return known
        try:
            wanted = await self._read(known if lead is not None else None)
        except DependencyError as error:
            if known is None:
                raise  # without its own intents a leader decides nothing
            if not self.trouble:
                logger.warning("the store cannot be read; going on with what is known: %s", error)
            wanted, self.trouble = known, str(error)
        else:
            self.trouble = self._store.trouble
        self._wanted, self._intents_of = wanted, lead
        self._read_s, self._edits_read = now_s, edits
        return wanted

    async def _read(self, known: Wanted | None) -> Wanted:
        await self._registry.refresh()
        catalog = await self._store.catalog.current()
        records = await self._store.keys.all()
        keys = tuple(r.key for r in records if r.revoked_wall_s is None)
        if known is not None:
            return Wanted(catalog, keys, known.intents, known.broken)
        placed = await self._store.placements.all()
        for broken in set(placed.broken) - self._told:
            logger.error("replica %s: %s", broken.replica, broken.why)
        self._told = set(placed.broken)
        intents = {intent.replica: intent for intent in placed.intents}
        return Wanted(catalog, keys, intents, placed.broken)

    async def save(self, term: int, decision: Decision, events: Iterable[NewEvent]) -> None:
        """Store a decision, all of it or nothing; after a failure the intents are read again."""
        wanted, self._wanted = self._wanted, None
        await self._store.placements.apply(term, decision.saves, decision.forgets, events)
        assert wanted is not None
        intents = {**wanted.intents, **{i.replica: i for i in decision.saves}}
        kept = {id_: intent for id_, intent in intents.items() if id_ not in decision.forgets}
        self._wanted = replace(wanted, intents=kept)
