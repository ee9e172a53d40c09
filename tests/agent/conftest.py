"""The node that agent tests run on."""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from llmgw.testing.control import FakeControl
from llmgw.testing.hardware import build_nvml
from tests.agent.world import Node


@pytest.fixture
async def control() -> AsyncIterator[FakeControl]:
    async with FakeControl().running() as control:
        yield control


@pytest.fixture
def node(tmp_path: Path, control: FakeControl) -> Iterator[Node]:
    node = Node(tmp_path, control)
    yield node
    node.clean_up()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def ports() -> Callable[[], int]:
    return free_port


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
