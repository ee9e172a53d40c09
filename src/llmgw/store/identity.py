"""What a store is: its id and the secret that engine keys are derived from, each made once."""

from collections.abc import Callable
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core.ids import ID_BYTES, id_from
from llmgw.store.database import Database
from llmgw.store.statements import insert_if_absent
from llmgw.store.tables import facts

SECRET_BYTES: Final = 32

Entropy = Callable[[int], bytes]
"""So many random bytes, fit for secrets."""


class Identity:
    """Inserts if absent and then reads: two servers that start at once get the same answer."""

    def __init__(self, database: Database, entropy: Entropy) -> None:
        self._database = database
        self._entropy = entropy

    async def store_id(self) -> str:
        """Return the id that tells this store from any other."""
        return await self._once("store_id", id_from(self._entropy(ID_BYTES)))

    async def secret(self) -> bytes:
        """Return the secret."""
        return bytes.fromhex(await self._once("secret", self._entropy(SECRET_BYTES).hex()))

    async def _once(self, name: str, fresh: str) -> str:
        query = select(facts.c.value).where(facts.c.name == name)

        async def look(connection: AsyncConnection) -> str | None:
            return await connection.scalar(query)

        async def make(connection: AsyncConnection) -> str:
            row = {"name": name, "value": fresh}
            await connection.execute(insert_if_absent(connection, facts), row)
            return str((await connection.execute(query)).scalar_one())

        found = await self._database.read(look)
        return await self._database.write(make) if found is None else found
