"""The few statements that SQLAlchemy's core writes differently for SQLite and PostgreSQL."""

from sqlalchemy import Insert, Table, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


def insert_if_absent(connection: AsyncConnection, table: Table) -> Insert:
    """Return an insert that leaves a row alone which is there already."""
    return _insert(connection, table).on_conflict_do_nothing()


def upsert(connection: AsyncConnection, table: Table) -> Insert:
    """Return an insert that replaces the row with the same primary key."""
    statement = _insert(connection, table)
    keys = [column.name for column in table.primary_key]
    values = {c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key}
    return statement.on_conflict_do_update(index_elements=keys, set_=values)


async def reserve(connection: AsyncConnection, table: Table) -> None:
    """Keep other writers off a table for the rest of the transaction: it is read, then written.

    On SQLite a write is alone in the whole file already.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(text(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE"))


def _insert(connection: AsyncConnection, table: Table) -> sqlite.Insert | postgresql.Insert:
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
