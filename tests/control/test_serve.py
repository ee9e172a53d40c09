"""`llmgw serve` as a whole, in this process: it comes up, serves, and is gone within seconds."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from llmgw.admin.client import AdminClient, connect
from llmgw.admin.errors import AdminUnreachableError
from llmgw.admin.schema import Status
from llmgw.apps.serve import run_serve
from llmgw.config.loader import Surroundings
from llmgw.config.settings import ServeSettings
from llmgw.runtime.tasks import OwnedTasks
from llmgw.testing.fleet import catalog, profile
from llmgw.testing.waiting import eventually, eventually_true
from tests.control.planes import Nodes
from tests.e2e.cluster import free_ports

AROUND = Surroundings({}, root=False, host="here")
STOP_S_MAX = 10.0
START_S_MAX = 15.0


def settings_in(folder: Path, store: str = "", file: Path | None = None) -> ServeSettings:
    admin, agents, gateway = free_ports(3)
    return ServeSettings(
        folder,
        store=store,
        catalog=file,
        admin_port=admin,
        agents_port=agents,
        gateway_port=gateway,
        settle_s=0.1,
    )


async def status_once(client: AdminClient, condition: Callable[[Status], bool]) -> Status:
    """Return the first status for which the condition holds."""
    found: list[Status] = []

    async def holds() -> bool:
        with suppress(AdminUnreachableError):
            found.append(await client.status())
        return bool(found) and condition(found[-1])

    await eventually_true(holds, within_s=START_S_MAX, saying=lambda: f"the last was {found[-1:]}")
    return found[-1]


def is_up(status: Status) -> bool:
    return status.leads and status.snapshot is not None


@asynccontextmanager
async def serving(settings: ServeSettings) -> AsyncIterator[AdminClient]:
    stop = asyncio.Event()
    async with OwnedTasks("serve", tasks_max=1) as tasks:
        run = tasks.start(run_serve(settings, AROUND, stop), "serve")
        await eventually(
            lambda: settings.admin_key_file.exists() or run.done(), within_s=START_S_MAX
        )
        assert not run.done(), run
        key = settings.admin_key_file.read_text()
        async with connect(f"http://127.0.0.1:{settings.admin_port}", key) as client:
            yield client
        stop.set()
        async with asyncio.timeout(STOP_S_MAX):
            await run


async def test_it_leads_publishes_to_the_gateway_inside_and_leaves_engines_alone(
    tmp_path: Path, nodes: Nodes
) -> None:
    settings = settings_in(tmp_path)
    async with serving(settings) as client:
        status = await status_once(client, is_up)
        assert (status.term, status.troubles, status.store) == (1, (), str(tmp_path / "llmgw.db"))
        agent = nodes.start(f"127.0.0.1:{settings.agents_port}")
        await client.put_catalog(catalog(profile()))
        status = await status_once(client, lambda s: dict(s.replicas) == {"ready": 1})
        (gateway,) = status.gateways
        assert gateway.linked
    assert len(agent.alive) == 1
    assert list(agent.starts.values()) == [1]


async def test_without_a_store_it_runs_from_its_file_and_says_what_that_means(
    tmp_path: Path,
) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text("models: []\nnodes: [n1]\n")
    async with serving(settings_in(tmp_path / "state", "none", file)) as client:
        status = await status_once(client, is_up)
        assert "no store" in status.warnings[0]
        assert str(file) in status.store
        assert [total.requests for total in await client.usage()] == [0]


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", settings.admin_port))
        taken.listen()
        with pytest.raises(BaseExceptionGroup) as failed:
            await run_serve(settings, AROUND, asyncio.Event())
    assert f"port {settings.admin_port}" in str(failed.value.exceptions[0])
