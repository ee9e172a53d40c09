"""PostgreSQL's own dangers: failovers, stopped leaders, locks, a server that is away."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from sqlalchemy import make_url

from llmgw.core.errors import StorageError
from llmgw.core.fleet.catalog import Catalog
from llmgw.runtime.clock import SystemClock
from llmgw.store.errors import StoreReadOnlyError, StoreUnreachableError
from llmgw.store.lease_row import RowLease
from llmgw.store.store import Store, open_store
from llmgw.testing.clock import ManualClock
from llmgw.testing.waiting import eventually
from tests.store.servers import POSTGRES, run_sql

pytest_plugins = ["tests.store.fixtures"]

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.parametrize("store_server", [POSTGRES], indirect=True),
]


@contextlib.asynccontextmanager
async def demoted(url: str) -> AsyncIterator[None]:
    """Let the database take no writes, as an old primary does, for connections that exist too."""
    name = make_url(url).database
    await run_sql(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        yield
    finally:
        clear = "SET default_transaction_read_only = off"
        await run_sql(url, clear, f"ALTER DATABASE {name} RESET default_transaction_read_only")


async def test_writes_fail_with_a_sentence_while_the_server_takes_none_and_then_go_on(
    store: Store, store_url: str
) -> None:
    await store.catalog.save(Catalog(), 0, 1.0)
    async with demoted(store_url):
        await store.database.close()  # the pool's connections are from before
        with pytest.raises(StoreReadOnlyError, match=r"takes no writes .* name the primary"):
            await store.catalog.save(Catalog(), 1, 1.0)
    assert (await store.catalog.save(Catalog(), 1, 1.0)).revision == 2


async def test_pooled_connections_that_find_the_server_demoted_are_dropped_at_once(
    store: Store, store_url: str
) -> None:
    async def spoil() -> None:
        # What a connection sees that stayed with the old primary across a failover.
        async def work(connection):  # type: ignore[no-untyped-def]
            await connection.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
            await asyncio.sleep(0)

        await store.database.write(work)

    await asyncio.gather(*(spoil() for _ in range(8)))
    assert (await store.catalog.save(Catalog(), 0, 1.0)).revision == 1
    await asyncio.gather(*(store.gateways.seen(f"g{i}", 1.0) for i in range(8)))


async def test_a_restarted_server_costs_no_operation_that_follows(
    store: Store, store_url: str, store_server: str
) -> None:
    await asyncio.gather(*(store.catalog.current() for _ in range(8)))
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
    await run_sql(store_server, f"{kill}'{make_url(store_url).database}'")
    assert (await store.catalog.save(Catalog(), 0, 1.0)).revision == 1


@pytest.mark.parametrize("password", ["pa55word"])
async def test_a_server_that_is_not_there_is_named_without_the_password(
    store_server: str, password: str
) -> None:
    url = f"postgresql://me:{password}@127.0.0.1:1/llmgw"
    with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.1:1/llmgw") as refused:
        async with open_store(url, SystemClock(), os.urandom):
            pass
    assert password not in str(refused.value)


async def test_a_database_that_does_not_exist_is_named(store_server: str) -> None:
    url = make_url(store_server).set(database="nothing_of_the_kind")
    with pytest.raises(StorageError, match='database "nothing_of_the_kind" does not exist'):
        async with open_store(url.render_as_string(hide_password=False), SystemClock(), os.urandom):
            pass


@contextlib.contextmanager
def leading(lease: RowLease, name: str, told: list[str]) -> Iterator[asyncio.Task[int]]:
    """Let somebody take the lead, beside the test, and have it for the moment of taking it."""

    async def take() -> int:
        async with lease.hold(name, None, told.append) as lead:
            return lead.term

    task = asyncio.ensure_future(take())
    try:
        yield task
    finally:
        task.cancel()


async def test_a_standby_takes_over_when_it_has_seen_no_renewal_for_the_lease(
    store: Store,
) -> None:
    clock = ManualClock()
    lease = RowLease(store.database, clock, lease_s=10.0)
    async with lease.hold("first, then stopped", 0.0, print) as lead:
        told: list[str] = []
        with leading(lease, "second", told) as second:
            for _ in range(19):
                await eventually(lambda: clock.sleepers == 1)
                clock.advance(0.5)
            await eventually(lambda: clock.sleepers == 1)
            assert not second.done()
            clock.advance(0.5)
            assert await asyncio.wait_for(second, 5.0) == lead.term + 1
        assert told == [f"first, then stopped leads on {store.database.place}; standing by"]


async def test_a_leader_that_renews_is_left_alone(store: Store) -> None:
    clock = ManualClock()
    lease = RowLease(store.database, clock, lease_s=1.5)
    async with lease.hold("first", 0.0, print) as lead, asyncio.TaskGroup() as group:
        keeper = group.create_task(lead.keep())
        with leading(lease, "second", []) as second:
            for _ in range(12):
                await eventually(lambda: clock.sleepers == 2)
                clock.advance(0.5)
            await eventually(lambda: clock.sleepers == 2)
            assert not second.done()
            assert not lead.lost.is_set()
        keeper.cancel()


async def test_a_leader_that_cannot_renew_stands_down_within_the_lease(
    store: Store, store_url: str
) -> None:
    lease = RowLease(store.database, SystemClock(), lease_s=1.0)
    async with lease.hold("first", 0.0, print) as lead:
        blocker = await asyncpg.connect(store_url)
        try:
            transaction = blocker.transaction()
            await transaction.start()
            await blocker.execute("SELECT * FROM lead FOR UPDATE")
            await asyncio.wait_for(lead.keep(), 5.0)
            assert lead.lost.is_set()
            await transaction.rollback()
        finally:
            await blocker.close()
