"""Migrations: from nothing to what the code expects, once, and never backwards."""

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from llmgw.core.fleet.catalog import Catalog
from llmgw.runtime.clock import SystemClock
from llmgw.store.errors import StoreSchemaError
from llmgw.store.migrations.upgrade import Upgrade
from llmgw.store.schema import REVISION
from llmgw.store.store import Store, open_store
from llmgw.store.tables import metadata

pytest_plugins = ["tests.store.fixtures"]


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, metadata))


async def test_the_migrations_lead_from_nothing_to_the_tables_of_the_code(store: Store) -> None:
    assert await store.database.read(lambda connection: connection.run_sync(differences)) == []


async def test_a_column_that_no_migration_makes_would_be_noticed(store: Store) -> None:
    drop = text("ALTER TABLE events DROP COLUMN what")
    await store.database.write(lambda connection: connection.execute(drop))
    assert await store.database.read(lambda connection: connection.run_sync(differences)) != []


def test_the_code_expects_the_last_revision_and_they_are_numbered_in_order() -> None:
    upgrade = Upgrade.load()
    numbers = [int(script.revision) for script in upgrade.revisions]
    assert numbers == list(range(1, len(numbers) + 1))
    assert upgrade.revisions[-1].revision == REVISION


def test_the_reference_names_every_table_and_no_other() -> None:
    reference = Path(__file__).parents[2] / "docs" / "reference" / "store.md"
    rows = re.findall(r"^\| `(\w+)` \|", reference.read_text(), re.MULTILINE)
    assert rows == sorted(metadata.tables)


async def test_several_that_start_at_once_on_nothing_all_find_the_tables(store_url: str) -> None:
    async def start() -> int:
        async with open_store(store_url, SystemClock(), os.urandom) as store:
            return (await store.catalog.current()).revision

    assert await asyncio.gather(*(start() for _ in range(6))) == [0] * 6


@dataclass(frozen=True)
class Dump:
    """All that a newer schema's store holds."""

    version: str
    catalogs: int


async def dump(store: Store) -> Dump:
    async def work(connection):  # type: ignore[no-untyped-def]
        version = await connection.scalar(text("SELECT version_num FROM alembic_version"))
        return Dump(version, await connection.scalar(text("SELECT count(*) FROM catalogs")))

    return await store.database.read(work)


@pytest.mark.parametrize("newer", ["9999", "0002", "not-ours"])
async def test_a_newer_schema_is_refused_in_a_sentence_and_left_as_it_is(
    store: Store, store_url: str, newer: str
) -> None:
    await store.catalog.save(Catalog(), 0, 1.0)
    stamp = text("UPDATE alembic_version SET version_num = :newer")
    await store.database.write(lambda connection: connection.execute(stamp, {"newer": newer}))
    sentence = f"has schema {newer}, this llmgw knows schemas up to {REVISION}; it was left as it"
    with pytest.raises(StoreSchemaError, match=sentence):
        async with open_store(store_url, SystemClock(), os.urandom):
            pass
    assert await dump(store) == Dump(newer, 1)


async def test_opening_again_keeps_what_was_stored(store: Store, store_url: str) -> None:
    await store.catalog.save(Catalog(), 0, 1.0)
    async with open_store(store_url, SystemClock(), os.urandom) as again:
        assert (await again.catalog.current()).revision == 1
