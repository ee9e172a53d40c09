"""Brings the tables up to this llmgw at start; refuses, untouched, what a newer one has made.

The revision is looked at before anything is written. A store that is up to date costs one small
read, and Alembic is not even loaded.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, String, column, inspect, select, table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.store import tables
from llmgw.store.database import Database
from llmgw.store.errors import StoreSchemaError

if TYPE_CHECKING:
    from llmgw.store.migrations.upgrade import Upgrade

REVISION: Final = "0001"
"""What this llmgw works with: the last of `migrations.versions`."""
VERSION_TABLE: Final = "alembic_version"

# One number for all llmgw: of two that start at once on PostgreSQL one waits for the other.
_MIGRATION_LOCK: Final = 7_214_065_911


async def bring_up_to_date(database: Database) -> None:
    """Make or change the tables where that is needed; safe when two processes start at once."""

    async def look(connection: AsyncConnection) -> str | None:
        return await _found(connection, database.place)

    if await database.read(look) == REVISION:
        return
    # Alembic reads the revisions' files, and takes a while to load: not in the event loop.
    upgrade = await asyncio.to_thread(_upgrade)

    async def migrate(connection: AsyncConnection) -> None:
        if connection.dialect.name == "postgresql":
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        found = await _found(connection, database.place)
        if found != REVISION:
            await connection.run_sync(upgrade.run, found)

    await database.write(migrate)


async def _found(connection: AsyncConnection, place: str) -> str | None:
    names = await connection.run_sync(_table_names)
    if VERSION_TABLE not in names:
        ours = sorted(names & tables.metadata.tables.keys())
        if ours:
            raise StoreSchemaError(
                f"{place} has tables that llmgw did not make ({', '.join(ours)}); give llmgw a "
                "database of its own"
            )
        return None
    version = select(column("version_num", String)).select_from(table(VERSION_TABLE))
    found = await connection.scalar(version)
    if found is None:
        return None
    if not found.isdigit() or int(found) > int(REVISION):
        raise StoreSchemaError(
            f"{place} has schema {found}, this llmgw knows schemas up to {REVISION}; it was left "
            "as it is: start the newer llmgw again, or restore a backup made before the upgrade"
        )
    return str(found)


def _table_names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def _upgrade() -> "Upgrade":
    # Imported here, in a thread: 0.4 s that a store which is up to date need not pay.
    from llmgw.store.migrations import upgrade

    return upgrade.Upgrade.load()
