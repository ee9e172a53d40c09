"""Fixtures for tests that need a store: an empty one of each kind, per test.

A test of one kind only says `@pytest.mark.parametrize("store_server", [SQLITE], indirect=True)`.
"""

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from llmgw.runtime.clock import SystemClock
from llmgw.store.store import Store, open_store
from tests.guards.parts import require
from tests.store.servers import POSTGRES, SQLITE, URL_VARIABLE, run_sql, server, server_here

_numbers = itertools.count()


@pytest.fixture(
    scope="session", params=[SQLITE, pytest.param(POSTGRES, marks=pytest.mark.postgres)]
)
def store_server(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """A server where the kind has one, for the whole run."""
    if request.param == SQLITE:
        yield None
        return
    require("PostgreSQL", here=server_here(), how=f"install postgresql, or set {URL_VARIABLE}")
    with server() as url:
        yield url


@pytest.fixture
async def store_url(store_server: str | None, tmp_path: Path) -> AsyncIterator[str]:
    """An empty store, not opened yet."""
    if store_server is None:
        yield f"sqlite:///{tmp_path}/llmgw.db"
        return
    name = f"llmgw_test_{os.getpid()}_{next(_numbers)}"
    await run_sql(store_server, f"CREATE DATABASE {name}")
    yield make_url(store_server).set(database=name).render_as_string(hide_password=False)
    await run_sql(store_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """An open one."""
    async with open_store(store_url, SystemClock(), os.urandom) as opened:
        yield opened
