"""The journal by itself: nothing is lost, nothing is counted twice by it, everything is bounded."""

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from llmgw.core.errors import StorageError
from llmgw.core.traffic.usage import Ending, Usage
from llmgw.gateway.entry import Entry
from llmgw.gateway.journal import Journal, JournalFullError
from llmgw.gateway.options import JournalOptions
from llmgw.gateway.segments import LINE_BYTES_MAX, Segment
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.threads import ThreadPool

SMALL = JournalOptions(segment_bytes=16 * LINE_BYTES_MAX, bytes_max=64 * LINE_BYTES_MAX)


class Disk:
    """Reserves space while it has any."""

    def __init__(self) -> None:
        self.full = False

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        os.posix_fallocate(descriptor, offset, length)


@asynccontextmanager
async def journal(
    directory: Path, options: JournalOptions = SMALL, disk: Disk | None = None
) -> AsyncIterator[Journal]:
    """A journal that ends in order."""
    pool = ThreadPool("test")
    made = Journal(directory, options, pool, SystemClock(), (disk or Disk()).reserve)
    await pool.run(made.begin)
    try:
        yield made
    finally:
        await pool.run(made.end)
        await pool.close()


@contextmanager
def failing(segment: Segment | None) -> Iterator[None]:
    """Let every write to the segment fail, for the block."""
    assert segment is not None
    kept = os.dup(segment.descriptor)
    with Path(os.devnull).open("rb") as readonly:
        os.dup2(readonly.fileno(), segment.descriptor)
    try:
        yield
    finally:
        os.dup2(kept, segment.descriptor)
        os.close(kept)


def files_in(directory: Path) -> list[Path]:
    """The segments, oldest first."""
    return sorted(directory.glob("journal-*"))


def entry(name: str, **changes: object) -> Entry:
    record = Entry(request=name, opened_wall_s=1.0, key="k", account="a", path="/v1/x", model="m")
    for field, value in changes.items():
        setattr(record, field, value)
    return record


async def written() -> None:
    """The end of this turn of the loop, and of what it put off to the next."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def drained(made: Journal) -> list[str]:
    """All that is not acknowledged, in order; acknowledges it."""
    names: list[str] = []
    while True:
        records, place = await made.unacknowledged()
        if not records:
            return names
        names += [record.request for record in records]
        await made.acknowledge(place)


def test_a_record_has_the_fields_of_usage() -> None:
    assert set(Entry.__struct_fields__) == set(Usage.__dataclass_fields__) - {"unknown"}


async def test_what_closes_is_there_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        for name in ("a", "b"):
            record = entry(name)
            made.open(record)
            await written()
            record.ending, record.completion_tokens = Ending.ANSWERED, 5
            made.close(record)
        await written()
        records, place = await made.unacknowledged()
        assert [(r.request, r.ending, r.completion_tokens) for r in records] == [
            ("a", Ending.ANSWERED, 5),
            ("b", Ending.ANSWERED, 5),
        ]
        assert (await made.unacknowledged())[0] == records
        await made.acknowledge(place)
        assert (await made.unacknowledged())[0] == ()


async def test_all_records_of_a_turn_are_one_write(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        await written()
        before = made.bytes_held
        records = [entry(f"r{i}") for i in range(3)]
        for record in records:
            made.open(record)
        assert made.bytes_held == before
        made.close(records[0])
        await written()
        (file, _) = files_in(tmp_path)
        lines = file.read_bytes().rstrip(b"\0").splitlines()
    assert [line[:1] for line in lines] == [b"c", b"o", b"o"]


async def test_what_a_killed_gateway_left_open_is_settled_as_it_stood(tmp_path: Path) -> None:
    async with journal(tmp_path) as first:
        done, cut = entry("done"), entry("cut")
        first.open(done)
        first.open(cut)
        await written()
        done.ending = Ending.ANSWERED
        first.close(done)
        cut.prompt_tokens, cut.replica = 11, "r1"
        first.touch(cut)
        await written()
        # The files as kill -9 leaves them, beside a torn last line.
        left = tmp_path / "left"
        left.mkdir()
        for path in files_in(tmp_path):
            data = path.read_bytes().rstrip(b"\0")
            (left / path.name).write_bytes(data + b'c{"request":"torn"' if data else b"")
    async with journal(left) as second:
        records, _ = await second.unacknowledged()
        settled = {record.request: record for record in (await second.recent(10))}
    assert records[0].request == "done"
    assert settled.keys() == {"done", "cut"}
    assert (settled["cut"].ending, settled["cut"].estimated) == (Ending.UNKNOWN, True)
    assert (settled["cut"].prompt_tokens, settled["cut"].replica) == (11, "r1")
    async with journal(left) as third:
        assert sorted(await drained(third)) == ["cut", "done"]
    async with journal(left) as fourth:
        assert len(await fourth.recent(10)) <= 2


async def test_segments_follow_each_other_and_go_when_acknowledged(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        long = entry("long")
        made.open(long)
        names = []
        for i in range(200):
            record = entry(f"r{i}")
            made.open(record)
            await written()
            made.close(record)
            await written()
            await made.tend()
            names += await drained(made)
        assert names == [f"r{i}" for i in range(200)]
        assert len(files_in(tmp_path)) <= 3
        # The long one was carried along: it is open in what is left.
        files = files_in(tmp_path)
        assert any(b'o{"request":"long"' in path.read_bytes() for path in files)
        made.close(long)
        await written()
        assert await drained(made) == ["long"]


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with journal(tmp_path):
        modes = {stat.S_IMODE(path.stat().st_mode) for path in files_in(tmp_path)}
    assert modes == {0o600}


async def test_a_full_disk_refuses_new_records_and_loses_no_end(tmp_path: Path) -> None:
    disk = Disk()
    async with journal(tmp_path, disk=disk) as made:
        disk.full = True
        opened = [entry(f"open{i}", model="m" * 100, account="a" * 100) for i in range(3)]
        for record in opened:
            made.open(record)
        with pytest.raises(JournalFullError) as refused:
            await _fill(made)
        assert "the disk is full: free some space" in str(refused.value)
        assert str(tmp_path) in str(refused.value)
        for record in opened:
            made.close(record)
            await written()
        assert (await drained(made))[-3:] == ["open0", "open1", "open2"]
        assert made.lost == 0
        disk.full = False
        await made.tend()
        assert made.why == ""
        made.open(entry("again"))


async def test_a_journal_that_begins_on_a_full_disk_refuses_until_there_is_room(
    tmp_path: Path,
) -> None:
    disk = Disk()
    disk.full = True
    async with journal(tmp_path, disk=disk) as made:
        with pytest.raises(JournalFullError, match="the disk is full"):
            made.open(entry("a"))
        disk.full = False
        await made.tend()
        await made.tend()
        made.open(entry("a"))


async def test_a_failed_write_keeps_the_ends_and_writes_them_later(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        record, other = entry("a"), entry("b")
        made.open(record)
        made.open(other)
        await written()
        descriptor = made._current.descriptor  # type: ignore[union-attr]
        readonly = os.open(tmp_path, os.O_RDONLY)
        kept = os.dup(descriptor)
        os.dup2(readonly, descriptor)  # every write fails from now on
        made.close(record)
        await written()
        with pytest.raises(JournalFullError):
            made.open(entry("c"))
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(readonly)
        await made.tend()
        assert made.why == ""
        assert await drained(made) == ["a"]


async def test_ends_that_had_to_wait_for_the_disk_are_news(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        record = entry("a")
        made.open(record)
        await written()
        with failing(made._current):
            made.close(record)
            await written()
            assert await made.unacknowledged() == ((), (1, made._current.used))  # type: ignore[union-attr]
            assert not made.news.is_set()
        await made.tend()
        assert made.news.is_set()
        assert await drained(made) == ["a"]


async def test_ends_survive_a_segment_that_cannot_be_begun(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        made.open(entry("open"))
        await written()
        names: list[str] = []
        with failing(made._spare):
            while not made.why:
                record = entry(f"r{len(names)}")
                made.open(record)
                await written()
                made.close(record)
                await written()
                names.append(record.request)
        await made.tend()
        assert await drained(made) == names


async def test_the_journal_is_bounded_and_says_who_must_act(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        with pytest.raises(JournalFullError, match="no control plane has acknowledged"):
            await _fill(made)
        held = sum(path.stat().st_size for path in files_in(tmp_path))
        assert held <= SMALL.bytes_max
        first, place = await made.unacknowledged()
        await made.acknowledge(place)
        while first:
            first, place = await made.unacknowledged()
            await made.acknowledge(place)
        await made.tend()
        made.open(entry("again"))


async def test_a_setting_lets_it_serve_on_and_drop_the_oldest(tmp_path: Path) -> None:
    serving = JournalOptions(SMALL.segment_bytes, SMALL.bytes_max, refuse_when_full=False)
    async with journal(tmp_path, serving) as made:
        await _fill(made)
        held = sum(path.stat().st_size for path in files_in(tmp_path))
        assert held <= SMALL.bytes_max
        assert made.lost > 0
        names = await drained(made)
        assert names == [f"r{i}" for i in range(1000 - len(names), 1000)]
        assert made.lost == 1000 - len(names)


@pytest.mark.parametrize("folder_too", [False, True])
async def test_files_that_somebody_removed_are_left_and_the_journal_begins_anew(
    tmp_path: Path, *, folder_too: bool
) -> None:
    async with journal(tmp_path / "j") as made:
        first, long = entry("first"), entry("long")
        for record in (first, long):
            made.open(record)
        made.close(first)
        await written()
        if folder_too:
            shutil.rmtree(tmp_path / "j")
        else:
            for path in files_in(tmp_path / "j"):
                path.unlink()
        assert (await made.unacknowledged())[0] == ()
        assert await made.recent(9) == ()
        for _ in range(2):
            await made.tend()
        assert made.why == ""
        made.close(long)
        await written()
        assert await drained(made) == ["long"]
    assert files_in(tmp_path / "j")


async def test_a_journal_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        record = entry("a")
        made.open(record)
        made.close(record)
        await written()
        path = files_in(tmp_path)[0]
        path.rename(tmp_path / "kept")
        path.mkdir()
        with pytest.raises(StorageError, match="cannot be read"):
            await made.unacknowledged()
        path.rmdir()
        (tmp_path / "kept").rename(path)
        assert await drained(made) == ["a"]


async def test_where_nobody_acknowledges_the_oldest_make_room_and_nothing_is_refused(
    tmp_path: Path,
) -> None:
    rolling = JournalOptions(SMALL.segment_bytes, SMALL.bytes_max, acknowledged=False)
    async with journal(tmp_path, rolling) as made:
        await _fill(made)
        assert sum(path.stat().st_size for path in files_in(tmp_path)) <= SMALL.bytes_max
        (last,) = await made.recent(1)
        assert last.request == "r999"


async def _fill(made: Journal) -> None:
    for i in range(1000):
        record = entry(f"r{i}")
        made.open(record)
        made.close(record)
        await written()
        await made.tend()


async def test_a_line_is_bounded_whatever_is_in_it(tmp_path: Path) -> None:
    async with journal(tmp_path) as made:
        record = entry("a", model="\x01" * 250, account="x" * 5000)
        made.open(record)
        made.close(record)
        await written()
        (usage,) = await made.recent(1)
        assert made.bytes_held <= LINE_BYTES_MAX
    assert usage.account == "x" * 64
