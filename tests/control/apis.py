"""An admin API that runs over real HTTP, beside its own client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256

from llmgw.admin.client import AdminClient, connect
from llmgw.control.admin_key import Door
from llmgw.control.edits import Edits
from llmgw.control.http import AdminApi, AdminOptions
from llmgw.core.fleet.catalog import Profile
from llmgw.testing.agent import FakeAgent
from llmgw.testing.fleet import catalog, profile
from tests.control.planes import Nodes, Running

KEY = "sk-admin-0123456789abcdef"


def entropy(count: int) -> bytes:
    entropy.calls += 1  # type: ignore[attr-defined]
    return sha256(str(entropy.calls).encode()).digest()[:count]  # type: ignore[attr-defined]


entropy.calls = 0  # type: ignore[attr-defined]


@dataclass
class Api:
    """An admin API that runs."""

    plane: Running
    client: AdminClient
    url: str


@asynccontextmanager
async def api_on(plane: Running) -> AsyncIterator[Api]:
    options = AdminOptions("127.0.0.1", 0, "test", "a test's store")
    api = AdminApi(plane.plane, Edits(plane.plane, entropy), Door(KEY), options)
    run = plane.tasks.start(api.run(), "admin API")
    await api.listening.wait()
    url = f"http://127.0.0.1:{api.port}"
    await plane.until(lambda: plane.plane.reconciler.seen is not None)
    async with connect(url, KEY, timeout_s=10.0) as client:
        yield Api(plane, client, url)
    run.cancel()


async def ready(api: Api, nodes: Nodes, *profiles: Profile) -> FakeAgent:
    agent = nodes.start(api.plane.endpoint)
    await api.client.put_catalog(catalog(*(profiles or (profile(),))))
    count = sum(p.replicas for p in profiles or (profile(),))
    await api.plane.until(lambda: api.plane.phases() == ["ready"] * count)
    return agent
