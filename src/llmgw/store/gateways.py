"""Which gateways belong: a drain waits for those, so they are remembered while they are away."""

from dataclasses import dataclass

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core.errors import NotFoundError
from llmgw.store.database import Database
from llmgw.store.statements import insert_if_absent
from llmgw.store.tables import gateways


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that belongs."""

    gateway: str
    first_seen_wall_s: float
    seen_wall_s: float


class Gateways:
    """Notes gateways and lists them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def seen(self, gateway: str, at_wall_s: float) -> None:
        """Note that a gateway was here."""
        row = {"gateway": gateway, "first_seen_wall_s": at_wall_s, "seen_wall_s": at_wall_s}
        one = gateways.c.gateway == gateway

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(insert_if_absent(connection, gateways), row)
            await connection.execute(update(gateways).where(one).values(seen_wall_s=at_wall_s))

        await self._database.write(work)

    async def all(self) -> tuple[Gateway, ...]:
        """Return those that belong, by id."""

        async def work(connection: AsyncConnection) -> tuple[Gateway, ...]:
            query = select(gateways).order_by(gateways.c.gateway)
            return tuple(Gateway(*row) for row in (await connection.execute(query)).all())

        return await self._database.read(work)

    async def remove(self, gateway: str) -> None:
        """Let one belong no more; raise NotFoundError if it did not."""
        one = gateways.c.gateway == gateway

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(delete(gateways).where(one))).rowcount

        if await self._database.write(work) == 0:
            raise NotFoundError(f"there is no gateway {gateway}")
