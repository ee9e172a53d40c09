"""What is wanted is read again when it changed, also when that happens while it is being read."""

import asyncio
from pathlib import Path

from llmgw.control.memory_store import MemoryStore
from llmgw.control.messages import Message
from llmgw.control.registry import Registry
from llmgw.control.wanted import WantedReader
from llmgw.core.errors import StorageError
from llmgw.core.fleet.catalog import Catalog
from llmgw.testing.clock import ManualClock


class GatedCatalog:
    """Answers when it is let; refuses when told to."""

    def __init__(self) -> None:
        self.revision = 1
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.refuses = False
        self.reads = 0

    async def current(self) -> Catalog:
        catalog = Catalog(revision=self.revision)
        self.reads += 1
        self.asked.set()
        await self.go_on.wait()
        if self.refuses:
            raise StorageError("the disk reports an error")
        return catalog

    async def save(self, catalog: Catalog, base_revision: int | None, at_wall_s: float) -> Catalog:
        raise NotImplementedError


def tell(_: Message) -> None:
    pass


def reader_on(folder: Path) -> tuple[WantedReader, GatedCatalog, ManualClock]:
    file = folder / "catalog.yaml"
    file.write_text("models: []\n")
    store, clock = MemoryStore(file, "none-test"), ManualClock()
    catalog = GatedCatalog()
    store.catalog = catalog  # type: ignore[assignment]
    return WantedReader(store, Registry(store, tell, clock), clock), catalog, clock


async def test_an_edit_that_comes_while_the_store_is_read_is_seen_at_the_next_turn(
    tmp_path: Path,
) -> None:
    reader, catalog, _ = reader_on(tmp_path)
    reading = asyncio.get_running_loop().create_task(reader.read(None))
    await catalog.asked.wait()
    catalog.revision = 2
    reader.edited()
    catalog.go_on.set()
    assert (await reading).catalog.revision == 1
    assert (await reader.read(None)).catalog.revision == 2


async def test_without_an_edit_it_is_read_every_few_seconds(tmp_path: Path) -> None:
    reader, catalog, clock = reader_on(tmp_path)
    catalog.go_on.set()
    for advance_s, reads in ((0.0, 1), (4.9, 1), (0.2, 2), (4.9, 2)):
        clock.advance(advance_s)
        await reader.read(None)
        assert catalog.reads == reads


async def test_a_store_that_cannot_be_read_leaves_what_was_known(tmp_path: Path) -> None:
    reader, catalog, _ = reader_on(tmp_path)
    catalog.go_on.set()
    before = await reader.read(None)
    catalog.refuses, catalog.revision = True, 2
    reader.edited()
    assert await reader.read(None) == before
    assert "disk" in reader.trouble
    catalog.refuses = False
    reader.edited()
    assert (await reader.read(None)).catalog.revision == 2
    assert reader.trouble == ""


async def test_a_file_that_cannot_be_used_any_more_is_a_trouble_that_is_shown(
    tmp_path: Path,
) -> None:
    file, clock = tmp_path / "catalog.yaml", ManualClock()
    file.write_text("models: []\n")
    store = MemoryStore(file, "none-test")
    reader = WantedReader(store, Registry(store, tell, clock), clock)
    await reader.read(None)
    assert reader.trouble == ""
    file.unlink()
    reader.edited()
    assert (await reader.read(None)).catalog.models == ()
    assert "catalog.yaml" in reader.trouble
    file.write_text("models: []\n")
    reader.edited()
    await reader.read(None)
    assert reader.trouble == ""
