"""Placements: what the leader wants of each replica. Only the holder of the term may write them."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core import document
from llmgw.core.fleet.intent import Intent
from llmgw.core.ids import ReplicaId
from llmgw.store import term as terms
from llmgw.store.database import Database
from llmgw.store.events import Events, NewEvent
from llmgw.store.statements import upsert
from llmgw.store.tables import placements


@dataclass(frozen=True, slots=True)
class Broken:
    """A placement that is there and cannot be read, so what it holds is not known."""

    replica: ReplicaId
    why: str


@dataclass(frozen=True, slots=True)
class Placed:
    """All that is stored."""

    intents: tuple[Intent, ...] = ()
    """By replica id."""
    broken: tuple[Broken, ...] = ()


class Placements:
    """Saves and reads intents."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events

    async def all(self) -> Placed:
        """Return every placement; one that cannot be read is named and hides no other."""

        async def work(connection: AsyncConnection) -> list[tuple[str, str]]:
            query = select(placements.c.replica, placements.c.document)
            rows = (await connection.execute(query.order_by(placements.c.replica))).all()
            return [(replica, text) for replica, text in rows]

        loaded = [_load(ReplicaId(name), text) for name, text in await self._database.read(work)]
        return Placed(
            tuple(one for one in loaded if isinstance(one, Intent)),
            tuple(one for one in loaded if isinstance(one, Broken)),
        )

    async def apply(
        self,
        term: int,
        saves: Iterable[Intent] = (),
        forgets: Iterable[ReplicaId] = (),
        events: Iterable[NewEvent] = (),
    ) -> None:
        """Save, forget and tell in one transaction, if `term` is still the store's.

        Raises StaleTermError, with nothing changed, if another leader has taken over.
        """
        rows = [_row(intent) for intent in saves]
        gone = tuple(forgets)
        told = tuple(events)

        async def work(connection: AsyncConnection) -> None:
            await terms.require(connection, term)
            if rows:
                await connection.execute(upsert(connection, placements), rows)
            for replica in gone:
                await connection.execute(delete(placements).where(placements.c.replica == replica))
            await self._events.add_within(connection, told)

        await self._database.write(work)


def _row(intent: Intent) -> dict[str, object]:
    placement = intent.placement
    return {
        "replica": placement.replica,
        "model": placement.model,
        "profile": placement.profile.name,
        "incarnation": placement.incarnation,
        "wanted": intent.wanted.value,
        "document": document.dump(intent),
    }


def _load(replica: ReplicaId, text: str) -> Intent | Broken:
    try:
        intent = document.load(Intent, text)
    except document.InvalidDocumentError as error:
        return Broken(replica, f"its stored placement cannot be read: {error}")
    if intent.replica != replica:
        return Broken(replica, f"its stored placement is that of another one, {intent.replica}")
    return intent
