"""One cluster per test, in a short folder: a unix socket's path has 107 bytes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.testing.tiny_gguf import make_tiny_gguf
from tests.e2e.cluster import Cluster

LAYERS = 30
"""About 170 tokens a second on one core: slow enough to be interrupted."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="llmgw-") as name:
        folder = Path(name)
        made = Cluster(folder, make_tiny_gguf(folder / "tiny.gguf", layers=LAYERS))
        try:
            yield made
        finally:
            made.close()
