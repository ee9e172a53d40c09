"""Events: what happened and is worth remembering, the newest of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.store.database import Database
from llmgw.store.statements import insert_if_absent
from llmgw.store.tables import events

EVENTS_KEPT: Final = 10_000
PAGE_MAX: Final = 1_000
TEXT_CHARS_MAX: Final = 4_000


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One that is not stored yet."""

    subject: str
    """What it happened to: a replica, a shard, a GPU, a node."""
    what: str
    at_wall_s: float
    source: str | None = None
    """Who tells: one life of a sender, within which `sequence` is unique. None for our own."""
    sequence: int | None = None
    """A repeated one of the same source is no news."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One as it is kept."""

    id: int
    at_wall_s: float
    subject: str
    what: str


class Events:
    """Adds and reads events."""

    def __init__(self, database: Database, kept: int = EVENTS_KEPT) -> None:
        self._database = database
        self._kept = kept

    async def add(self, new: Iterable[NewEvent]) -> None:
        """Store events, the oldest of all make room for them; repeated ones are left out."""
        rows = tuple(new)

        async def work(connection: AsyncConnection) -> None:
            await self.add_within(connection, rows)

        if rows:
            await self._database.write(work)

    async def add_within(self, connection: AsyncConnection, new: Iterable[NewEvent]) -> None:
        """Do the same in a transaction of another aggregate, so that both happen or none."""
        rows = [_row(event) for event in new]
        if not rows:
            return
        await connection.execute(insert_if_absent(connection, events), rows)
        # By number, not by id: a repeated event uses up an id on PostgreSQL.
        newest = select(events.c.id).order_by(events.c.id.desc())
        first_lost = newest.offset(self._kept).limit(1).scalar_subquery()
        await connection.execute(delete(events).where(events.c.id <= first_lost))

    async def read(
        self, after: int | None = None, limit: int = 100, subject: str | None = None
    ) -> tuple[StoredEvent, ...]:
        """Return up to `limit` events, oldest first: those after an id, or (None) the newest."""
        query = select(events.c.id, events.c.at_wall_s, events.c.subject, events.c.what)
        query = query.limit(min(limit, PAGE_MAX))
        if subject is not None:
            query = query.where(events.c.subject == subject)
        if after is None:
            query = query.order_by(events.c.id.desc())
        else:
            query = query.where(events.c.id > after).order_by(events.c.id)

        async def work(connection: AsyncConnection) -> list[StoredEvent]:
            rows = (await connection.execute(query)).all()
            return [StoredEvent(*row) for row in rows]

        found = await self._database.read(work)
        return tuple(found if after is not None else reversed(found))


def _row(event: NewEvent) -> dict[str, object]:
    return {
        "subject": _text(event.subject),
        "what": _text(event.what),
        "at_wall_s": event.at_wall_s,
        "source": event.source,
        "sequence": event.sequence,
    }


def _text(text: str) -> str:
    return text.replace("\0", "\ufffd")[:TEXT_CHARS_MAX]
