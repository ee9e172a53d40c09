"""The lead on PostgreSQL: a row that the leader renews.

A standby takes it when it has seen it unchanged for the lease by its own monotonic clock; a leader
that could not renew it for that long stands down by its own. No clocks are compared. No advisory
lock: a process that is stopped would keep it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core.errors import StorageError
from llmgw.runtime.clock import Clock
from llmgw.store import term as terms
from llmgw.store.database import Database
from llmgw.store.lease import Lead, Patience, Waiting
from llmgw.store.tables import lead as row

logger = logging.getLogger(__name__)

LEASE_S: Final = 15.0
"""How long a leader that does not renew keeps the lead."""
_RENEWALS_PER_LEASE: Final = 3


class Seen(NamedTuple):
    """The row, as somebody saw it."""

    term: int
    beat: int
    holder: str


class RowLease:
    """Takes the row; see Lease."""

    def __init__(self, database: Database, clock: Clock, lease_s: float = LEASE_S) -> None:
        self._database = database
        self._clock = clock
        self._lease_s = lease_s

    @asynccontextmanager
    async def hold(
        self, holder: str, wait_s: float | None, on_wait: Waiting
    ) -> AsyncIterator[Lead]:
        """See Lease."""
        patience = Patience(self._clock, self._database.place, wait_s, on_wait)
        lead = await self._take(holder, patience)
        try:
            yield lead
        finally:
            await self._give_back(lead)

    async def leader(self) -> str:
        """See Lease."""
        return (await self._look()).holder

    async def _take(self, holder: str, patience: Patience) -> Lead:
        await self._database.write(terms.make_row)
        seen, since_s = await self._look(), self._clock.monotonic_s()
        while True:
            now_s = self._clock.monotonic_s()
            free = seen.holder == terms.NOBODY or now_s - since_s >= self._lease_s
            if free and await self._moved(seen, holder):
                grip = _RowGrip(self._database, self._clock, now_s, self._lease_s)
                return Lead(self._database, seen.term + 1, holder, grip)
            await patience.wait(seen.holder)
            try:
                found = await self._look()
            except StorageError as error:
                logger.warning("the wait for the lead begins anew: %s", error)
                since_s = self._clock.monotonic_s()
                continue
            if found != seen:
                seen, since_s = found, self._clock.monotonic_s()

    async def _look(self) -> Seen:
        async def work(connection: AsyncConnection) -> Seen:
            query = select(row.c.term, row.c.beat, row.c.holder).where(row.c.id == terms.ROW)
            found = (await connection.execute(query)).one_or_none()
            return Seen(0, 0, terms.NOBODY) if found is None else Seen(*found)

        return await self._database.read(work)

    async def _moved(self, seen: Seen, holder: str) -> bool:
        unchanged = (row.c.id == terms.ROW) & (row.c.term == seen.term) & (row.c.beat == seen.beat)
        moved = update(row).where(unchanged).values(term=seen.term + 1, beat=0, holder=holder)

        async def work(connection: AsyncConnection) -> bool:
            return (await connection.execute(moved)).rowcount == 1

        return await self._database.write(work)

    async def _give_back(self, lead: Lead) -> None:
        mine = (row.c.id == terms.ROW) & (row.c.term == lead.term)

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(update(row).where(mine).values(holder=terms.NOBODY))

        try:
            await self._database.write(work)
        except StorageError as error:
            logger.warning("the lead runs out by itself, it could not be given back: %s", error)


class _RowGrip:
    def __init__(self, database: Database, clock: Clock, taken_s: float, lease_s: float) -> None:
        self._database = database
        self._clock = clock
        self._renewed_s = taken_s
        self._lease_s = lease_s

    async def rest(self) -> None:
        await self._clock.sleep(self._lease_s / _RENEWALS_PER_LEASE)

    async def holds(self, term: int) -> bool:
        mine = (row.c.id == terms.ROW) & (row.c.term == term)
        renewed = update(row).where(mine).values(beat=row.c.beat + 1)

        async def work(connection: AsyncConnection) -> bool:
            return (await connection.execute(renewed)).rowcount == 1

        before_s = self._clock.monotonic_s()
        try:
            async with asyncio.timeout(max(self._left_s(before_s), 0.0)):
                held = await self._database.write(work)
        except (StorageError, TimeoutError):
            return self._left_s(self._clock.monotonic_s()) > 0
        self._renewed_s = before_s
        return held

    def _left_s(self, now_s: float) -> float:
        return self._renewed_s + self._lease_s - now_s
