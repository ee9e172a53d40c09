"""The open store: one small object per aggregate, all on one database."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from llmgw.core.errors import InvalidRequestError
from llmgw.runtime.clock import Clock
from llmgw.store import schema
from llmgw.store.catalog import Catalogs
from llmgw.store.database import Database
from llmgw.store.events import Events
from llmgw.store.gateways import Gateways
from llmgw.store.identity import Entropy, Identity
from llmgw.store.keys import Keys
from llmgw.store.lease import Lead, Lease, Waiting
from llmgw.store.lease_file import FileLease
from llmgw.store.lease_row import RowLease
from llmgw.store.nodes import Nodes
from llmgw.store.placements import Placements
from llmgw.store.postgres import PostgresDriver
from llmgw.store.sqlite import SqliteDriver
from llmgw.store.usage import Ledger

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Store:
    """Everything that is stored, by aggregate."""

    database: Database
    lease: Lease
    catalog: Catalogs
    placements: Placements
    keys: Keys
    usage: Ledger
    events: Events
    nodes: Nodes
    gateways: Gateways
    identity: Identity

    @property
    def trouble(self) -> str:
        """Empty: what is stored is what is read."""
        return ""

    def lead(
        self, holder: str, wait_s: float | None = None, on_wait: Waiting = logger.info
    ) -> AbstractAsyncContextManager[Lead]:
        """Take the lead; see Lease.hold. `holder` says who this is: its process and host."""
        return self.lease.hold(holder, wait_s, on_wait)


@asynccontextmanager
async def open_store(url: str, clock: Clock, entropy: Entropy) -> AsyncIterator[Store]:
    """Open `sqlite:///PATH` or `postgresql://USER@HOST/NAME`, tables brought up to date."""
    parsed = _parse(url)
    # Making an engine imports its dialect and looks at paths: not in the event loop.
    if parsed.get_backend_name() == "sqlite":
        sqlite = SqliteDriver(Path(parsed.database or ""), clock)
        await sqlite.prepare()
        database = await asyncio.to_thread(Database, sqlite)
        lease: Lease = FileLease(database, clock, sqlite.lease_path)
    else:
        database = await asyncio.to_thread(Database, PostgresDriver(parsed))
        lease = RowLease(database, clock)
    try:
        await schema.bring_up_to_date(database)
        yield _assemble(database, lease, entropy)
    finally:
        await database.close()


def _assemble(database: Database, lease: Lease, entropy: Entropy) -> Store:
    events = Events(database)
    return Store(
        database=database,
        lease=lease,
        catalog=Catalogs(database),
        placements=Placements(database, events),
        keys=Keys(database),
        usage=Ledger(database),
        events=events,
        nodes=Nodes(database),
        gateways=Gateways(database),
        identity=Identity(database, entropy),
    )


def _parse(url: str) -> URL:
    # What does not parse is not shown: it may hold a password.
    remedy = "write sqlite:////var/lib/llmgw/llmgw.db or postgresql://USER@HOST/NAME"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:
        raise InvalidRequestError(f"the store's URL cannot be read; {remedy}") from error
    if backend not in {"sqlite", "postgresql"}:
        raise InvalidRequestError(f"there is no store of kind {backend}; {remedy}")
    if backend == "sqlite" and (parsed.database or ":memory:") == ":memory:":
        raise InvalidRequestError(f"a store needs a file; {remedy}, or --store none")
    return parsed
