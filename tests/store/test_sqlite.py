"""SQLite's own dangers: locks between processes, file modes, full disks, damaged files."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.core.errors import StorageError
from llmgw.core.fleet.catalog import Catalog, Model
from llmgw.core.traffic.usage import Ending, Usage
from llmgw.runtime.clock import SystemClock
from llmgw.store.database import Database
from llmgw.store.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from llmgw.store.events import NewEvent
from llmgw.store.gateways import Gateways
from llmgw.store.sqlite import SqliteDriver
from llmgw.store.store import Store, open_store
from llmgw.testing.waiting import eventually
from tests.guards.parts import require

ROOT = Path(__file__).parents[2]
PROCESS_S_MAX = 120.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "llmgw.db"


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    async with open_store(f"sqlite:///{path}", SystemClock(), os.urandom) as store:
        yield store


async def python(module: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def bulky(request: str) -> Usage:
    path = "/" + "x" * 20_000
    return Usage(request, 1.0, "k", "a", "m", path, Ending.ANSWERED, 200)


async def test_two_processes_with_12_writers_each_never_meet_a_locked_database(
    path: Path,
) -> None:
    url, turns = f"sqlite:///{path}", 10
    processes = [await python("tests.store.writers", url, "12", str(turns)) for _ in range(2)]
    async with asyncio.timeout(PROCESS_S_MAX):
        errors = [(await process.communicate())[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    async with opened(path) as store:
        # Each save read the newest revision and wrote the next: none was lost, none done twice.
        assert (await store.catalog.current()).revision == 2 * 12 * turns
        assert (await store.usage.totals(0, 2))[0].requests == 2 * 12 * turns


async def test_a_read_does_not_wait_for_a_write(path: Path) -> None:
    async with opened(path) as store:
        await store.catalog.save(Catalog(), 0, 1.0)

        async def read_meanwhile(connection: AsyncConnection) -> int:
            await connection.execute(text("DELETE FROM catalogs"))
            return (await store.catalog.current()).revision

        assert await store.database.write(read_meanwhile) == 1


async def test_nothing_can_be_written_through_a_reader(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(StorageError):
            await store.database.read(lambda c: c.execute(text("DELETE FROM catalogs")))


async def test_what_was_committed_is_synced_and_the_journal_is_a_wal(path: Path) -> None:
    async def pragma(connection: AsyncConnection) -> tuple[str, int, int]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        mode, sync, keys = [await connection.scalar(text(f"PRAGMA {name}")) for name in names]
        return mode, sync, keys

    async with opened(path) as store:
        assert await store.database.write(pragma) == ("wal", 2, 1)


async def test_all_of_the_stores_files_are_for_their_owner_only(path: Path) -> None:
    previous = os.umask(0)
    try:
        async with opened(path) as store, store.lead("test"):
            await store.identity.secret()
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    finally:
        os.umask(previous)
    names = {"llmgw.db", "llmgw.db-wal", "llmgw.db-shm", "llmgw.db.lease"}
    assert modes == dict.fromkeys(names, 0o600)


async def test_a_file_that_others_could_read_is_closed_to_them_with_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(path):
        pass
    os.chmod(path, 0o644)
    async with opened(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert "had mode 644, others could read it" in caplog.text


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachableError, match="its directory does not exist; make it first"):
        async with opened(tmp_path / "missing" / "llmgw.db"):
            pass


@pytest.mark.parametrize("content", [b"this is no database, " * 100, b"SQLite format 3\0" * 300])
async def test_a_damaged_file_is_named_with_the_remedy_and_left_as_it_is(
    path: Path, content: bytes
) -> None:
    fill(path, content)
    with pytest.raises(StoreDamagedError, match=r"llmgw\.db is damaged .* restore a backup"):
        async with opened(path):
            pass
    assert content_of(path) == content


async def test_a_file_that_was_cut_short_is_damaged_not_empty(path: Path) -> None:
    async with opened(path) as store:
        await store.usage.add([bulky(f"q{i}") for i in range(20)], "g")
    os.truncate(path, os.stat(path).st_size // 2)
    with pytest.raises(StoreDamagedError):
        async with opened(path) as store:
            await store.usage.read()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_lost_its_name_is_used_no_more(path: Path, *, replaced: bool) -> None:
    async with opened(path) as store:
        await store.events.add([NewEvent("a", "before", 1.0)])
        kept = path.with_name("kept")
        os.rename(path, kept)
        if replaced:
            fill(path, content_of(kept))
        for use in (store.events.add([NewEvent("a", "lost", 2.0)]), store.events.read()):
            with pytest.raises(StoreDamagedError, match="replaced" if replaced else "removed"):
                await use
        assert (path.name in os.listdir(path.parent)) is replaced
        os.rename(kept, path)
        await store.events.add([NewEvent("a", "after", 3.0)])
        assert [event.what for event in await store.events.read()] == ["before", "after"]


async def test_a_store_that_is_full_says_so_and_goes_on_when_there_is_room(path: Path) -> None:
    async with opened(path) as store:
        await store.usage.add([bulky("before")], "g")

        async def limit(connection: AsyncConnection) -> None:
            pages = await connection.scalar(text("PRAGMA page_count"))
            await connection.execute(text(f"PRAGMA max_page_count={pages}"))
            large = Model("m" * 100_000)
            await connection.execute(
                text("INSERT INTO catalogs VALUES (1, 1.0, :large)"), {"large": large.name}
            )

        with pytest.raises(StoreFullError, match=r"no space for .* free some on its disk"):
            await store.database.write(limit)
        assert (await store.catalog.current()).revision == 0
        assert await store.usage.add([bulky("before"), bulky("after")], "g") == 1


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True)
    mounted = done.returncode == 0
    require("mount", here=mounted, how="run as root where file systems may be mounted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_loses_nothing_and_the_store_goes_on_when_it_is_mended(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path) as folder:
        async with opened(folder / "llmgw.db") as store, store.lead("test") as lead:
            await store.usage.add([bulky("first")], "g")
            ballast = folder / "ballast"
            with contextlib.suppress(OSError):
                ballast.write_bytes(b"x" * 4_000_000)
            booked = 1
            with pytest.raises(StoreFullError, match="goes on by itself"):  # noqa: PT012
                for i in range(500):
                    booked += await store.usage.add([bulky(f"q{i}")], "g")
            assert len(await store.usage.read(limit=1000)) == booked
            ballast.unlink()
            await store.placements.apply(lead.term)
            assert await store.usage.add([bulky("last")], "g") == 1


async def test_a_read_only_disk_is_named_and_opens_when_it_is_mended(tmp_path: Path) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(tmp_path)], check=True)

    with small_disk(tmp_path) as folder:
        path = folder / "llmgw.db"
        async with opened(path) as store:
            await store.catalog.save(Catalog(), 0, 1.0)
        remount("ro")
        with pytest.raises(
            (StoreReadOnlyError, StoreUnreachableError), match=r"llmgw\.db .* goes on|tries again"
        ):
            async with opened(path) as store:
                await store.catalog.current()
        remount("rw")
        async with opened(path) as store:
            assert (await store.catalog.save(Catalog(), 1, 1.0)).revision == 2


async def test_a_writer_that_was_killed_half_way_leaves_a_whole_store(path: Path) -> None:
    async with opened(path):
        pass
    process = await python("tests.store.writers", f"sqlite:///{path}", "12", "100000")
    size = os.stat(path).st_size
    wal = path.with_name("llmgw.db-wal")
    await eventually(lambda: wal.exists() and wal.stat().st_size > size, within_s=30.0)
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    async with opened(path) as store:
        revision = (await store.catalog.current()).revision
        assert (await store.catalog.save(Catalog(), revision, 1.0)).revision == revision + 1
        check = text("PRAGMA integrity_check")
        assert await store.database.write(lambda c: c.scalar(check)) == "ok"


async def test_the_lead_of_a_killed_process_is_free_at_once(path: Path) -> None:
    process = await python("tests.store.leader", f"sqlite:///{path}")
    assert process.stdout is not None
    async with asyncio.timeout(PROCESS_S_MAX):
        assert await process.stdout.readline() == b"1\n"
    async with opened(path) as store:
        assert await store.lease.leader() == f"pid {process.pid}"
        process.send_signal(signal.SIGKILL)
        await process.communicate()
        async with store.lead("next", wait_s=0.0) as lead:
            assert lead.term == 2


async def test_a_lock_file_that_was_deleted_gives_the_lead_to_the_next_and_the_first_stands_down(
    path: Path,
) -> None:
    async with opened(path) as store, store.lead("first") as first:
        path.with_name("llmgw.db.lease").unlink()
        async with store.lead("second", wait_s=0.0) as second:
            assert second.term == first.term + 1
            await asyncio.wait_for(first.keep(), 10.0)
            assert first.lost.is_set()
            assert not second.lost.is_set()


async def test_a_lock_that_somebody_keeps_is_named_after_a_bounded_wait(path: Path) -> None:
    async with opened(path):
        pass
    driver = SqliteDriver(path, SystemClock(), wait_s=0.2)
    database = await asyncio.to_thread(Database, driver)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match=r"locked for more than 0\.2 s"):
            await Gateways(database).seen("g1", 1.0)
        assert await Gateways(database).all() == ()
        other.execute("ROLLBACK")
    await Gateways(database).seen("g1", 1.0)
    await database.close()


async def test_somebody_elses_database_is_refused_and_left_as_it_is(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE nodes (x)")
    os.chmod(path, 0o600)
    before = content_of(path)
    with pytest.raises(StorageError, match="has tables that llmgw did not make"):
        async with opened(path):
            pass
    assert content_of(path) == before
