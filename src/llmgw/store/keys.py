"""API keys: hashes and what they cover. A key itself is never here."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core.errors import ConflictError, NotFoundError
from llmgw.core.traffic.snapshot import ApiKey
from llmgw.store.database import Database
from llmgw.store.statements import insert_if_absent
from llmgw.store.tables import api_keys


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key with what people want to know of it."""

    key: ApiKey
    name: str
    shown: str
    """A few characters of the key itself, by which its owner knows it."""
    created_wall_s: float
    revoked_wall_s: float | None = None


class Keys:
    """Makes, revokes and lists keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, key: ApiKey, name: str, shown: str, at_wall_s: float) -> KeyRecord:
        """Store a new key; raise ConflictError if its id or hash is there already."""
        record = KeyRecord(key, name, shown, at_wall_s)

        async def work(connection: AsyncConnection) -> int:
            inserted = await connection.execute(
                insert_if_absent(connection, api_keys), _row(record)
            )
            return inserted.rowcount

        if await self._database.write(work) == 0:
            raise ConflictError(f"there is a key {key.id} already, or another with the same value")
        return record

    async def revoke(self, id_: str, at_wall_s: float) -> KeyRecord:
        """End a key for good; the first time counts. Raise NotFoundError if there is none."""
        one = api_keys.c.id == id_
        since = func.coalesce(api_keys.c.revoked_wall_s, at_wall_s)

        async def work(connection: AsyncConnection) -> KeyRecord | None:
            await connection.execute(update(api_keys).where(one).values(revoked_wall_s=since))
            row = (await connection.execute(select(api_keys).where(one))).one_or_none()
            return None if row is None else _record(row)

        record = await self._database.write(work)
        if record is None:
            raise NotFoundError(f"there is no key {id_}; `llmgw ctl keys` lists them")
        return record

    async def all(self) -> tuple[KeyRecord, ...]:
        """Return every key, revoked ones too, the oldest first."""
        query = select(api_keys).order_by(api_keys.c.created_wall_s, api_keys.c.id)

        async def work(connection: AsyncConnection) -> tuple[KeyRecord, ...]:
            return tuple(_record(row) for row in (await connection.execute(query)).all())

        return await self._database.read(work)


def _row(record: KeyRecord) -> dict[str, object]:
    key = record.key
    return {
        "id": key.id,
        "hash": key.hash,
        "name": record.name,
        "shown": record.shown,
        "account": key.account,
        "models": None if key.models is None else json.dumps(key.models),
        "expires_wall_s": key.expires_wall_s,
        "created_wall_s": record.created_wall_s,
        "revoked_wall_s": record.revoked_wall_s,
    }


def _record(row: Row[*tuple[Any, ...]]) -> KeyRecord:
    models = None if row.models is None else tuple(json.loads(row.models))
    key = ApiKey(row.id, row.hash, row.account, models, row.expires_wall_s)
    return KeyRecord(key, row.name, row.shown, row.created_wall_s, row.revoked_wall_s)
