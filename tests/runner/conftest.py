"""The world that runner tests start their processes in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.world import World, world_in


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made
