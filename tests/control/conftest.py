from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.runtime.tasks import OwnedTasks
from llmgw.testing.waiting import eventually
from tests.control.apis import Api, api_on
from tests.control.planes import Nodes, on_sqlite


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with OwnedTasks("agents", tasks_max=16) as tasks:
        nodes = Nodes(tasks)
        yield nodes
        # A call that is cancelled while it is dialed is not gone for gRPC: let dials end first.
        for agent in nodes.agents:
            agent.leave()
        await eventually(lambda: not any(agent.busy for agent in nodes.agents))


@pytest.fixture
async def api(tmp_path: Path, nodes: Nodes) -> AsyncIterator[Api]:
    async with on_sqlite(tmp_path) as plane, api_on(plane) as made:
        yield made
