"""The bounded log: nothing lost within its bound, nothing kept beyond it, no key in it."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.runner.libc import Libc
from llmgw.runner.lines import Line
from llmgw.runner.logs import LOGS_DIRECTORY, LogWriter, follow, format_line, stamp, tail
from llmgw.runner.pump import RAW_BYTES_MAX, RawPump, first_data, open_raw
from tests.runner.world import World, py, sh, wait

SLEEPS = "while :; do sleep 0.05; done"
NOW_S = 1796134169.123
LINES = st.lists(st.text("abc", min_size=1, max_size=30).map(lambda t: t.encode() + b"\n"))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / LOGS_DIRECTORY).mkdir()
    return tmp_path / LOGS_DIRECTORY


def files_of(logs: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(logs.glob("shard.*.log"))]


def test_a_line_says_when_and_who() -> None:
    assert (
        format_line(Line(b"ready"), "engine", NOW_S) == b"2026-12-01T14:09:29.123Z engine| ready\n"
    )
    assert format_line(Line(b"more", continues=True), "ray", NOW_S).endswith(b" ray+ more\n")
    assert stamp(59.9996) == "1970-01-01T00:01:00.000Z"


@settings(deadline=None)  # it is files that it makes
@given(st.lists(LINES, max_size=12), st.integers(8, 200), st.integers(1, 4))
def test_the_log_keeps_the_newest_lines_within_its_bound(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]], size: int, files: int
) -> None:
    logs = tmp_path_factory.mktemp("x") / LOGS_DIRECTORY
    logs.mkdir()
    for batch in batches:  # each with a writer of its own, as runners come and go
        writer = LogWriter(str(logs), size, files)
        assert writer.append(batch) == len(batch)
        writer.close()
    kept = files_of(logs)
    everything = b"".join(line for batch in batches for line in batch)
    assert everything.endswith(b"".join(kept))
    assert len(kept) <= files
    assert all(len(text) <= size or text.count(b"\n") == 1 for text in kept)
    if len(kept) < files:
        assert b"".join(kept) == everything


@settings(deadline=None)  # it is files that it makes
@given(LINES, st.integers(8, 100), st.integers(0, 12), st.integers(1, 300))
def test_a_tail_is_the_end_and_following_it_misses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    size: int,
    wanted: int,
    bytes_max: int,
) -> None:
    directory = tmp_path_factory.mktemp("x")
    (directory / LOGS_DIRECTORY).mkdir()
    writer = LogWriter(str(directory / LOGS_DIRECTORY), size, 1000)
    writer.append(lines)
    texts = [line.decode().rstrip("\n") for line in lines]
    piece = tail(directory, wanted, bytes_max)
    assert list(piece.lines) == texts[len(texts) - len(piece.lines) :]
    assert len(piece.lines) <= wanted
    assert sum(len(text) + 1 for text in piece.lines) <= bytes_max
    if sum(map(len, lines)) < bytes_max:
        assert len(piece.lines) == min(wanted, len(texts))
    writer.append([b"later\n"])
    writer.close()
    assert follow(directory, piece.cursor, 1000).lines == ("later",)
    read: list[str] = []
    cursor = "1:0"
    while (more := follow(directory, cursor, 1000)).lines:
        read, cursor = [*read, *more.lines], more.cursor
    assert read == [*texts, "later"]


def test_a_reader_whose_place_was_dropped_is_told(logs: Path) -> None:
    writer = LogWriter(str(logs), 20, 2)
    writer.append([b"first line\n"])
    cursor = tail(logs.parent, 1, 100).cursor
    writer.append([b"line number %d\n" % number for number in range(9)])
    writer.close()
    piece = follow(logs.parent, cursor, 1000)
    assert piece.lost
    assert piece.lines == ("line number 7",)
    assert follow(logs.parent, piece.cursor, 1000).lines == ("line number 8",)
    assert not follow(logs.parent, piece.cursor, 1000).lost


def test_a_torn_last_line_is_completed_before_anything_is_added(logs: Path) -> None:
    (logs / "shard.000003.log").write_bytes(b"whole\ntor")
    assert tail(logs.parent, 10, 1000).lines == ("whole",)
    writer = LogWriter(str(logs), 1000, 2)
    writer.append([b"next\n"])
    writer.close()
    assert tail(logs.parent, 10, 1000).lines == ("whole", "tor", "next")


def test_a_directory_without_logs_has_an_empty_tail(tmp_path: Path) -> None:
    piece = tail(tmp_path, 10, 1000)
    assert piece.lines == ()
    assert follow(tmp_path, piece.cursor, 1000).lines == ()


def test_what_was_read_on_gives_its_space_back_and_nothing_is_lost(logs: Path) -> None:
    raw = logs / "engine.raw"
    writer = LogWriter(str(logs), 1 << 20, 9)
    pump = RawPump(str(raw), "engine", (), writer, Libc())
    expected = []
    with raw.open("ab", buffering=0) as engine:
        for number in range(3000):
            expected.append(f"line {number} " + "x" * 80)
            engine.write(expected[-1].encode() + b"\n")
            while number % 100 == 0 and pump.step(0.0, NOW_S):
                pass
        engine.write(b"unfinished")
        while pump.step(0.0, NOW_S):
            pass
    assert raw.stat().st_size > 250_000
    assert raw.stat().st_blocks * 512 <= 8192
    with os.fdopen(open_raw(str(raw)), "rb") as file:
        assert file.seek(first_data(file.fileno())) == raw.stat().st_size - len(b"unfinished")
    while not pump.drain(0.0, NOW_S):
        pass
    pump.close()
    writer.close()
    assert not raw.exists()
    lines = b"".join(files_of(logs)).decode().splitlines()
    assert [line.partition("| ")[2] for line in lines] == [*expected, "unfinished"]


def test_output_that_somebody_truncated_is_read_from_its_new_beginning(logs: Path) -> None:
    raw = logs / "engine.raw"
    writer = LogWriter(str(logs), 1 << 20, 9)
    pump = RawPump(str(raw), "engine", (), writer, Libc())
    for text in ("a long first line\n", "b\n", "c\n"):
        raw.write_text(text)  # truncates
        pump.step(0.0, NOW_S)
        raw.write_text("")
        pump.step(0.0, NOW_S)
    pump.close()
    writer.close()
    lines = b"".join(files_of(logs)).decode().splitlines()
    assert [line.partition("| ")[2] for line in lines] == ["a long first line", "b", "c"]


def test_output_that_nobody_could_read_on_is_bounded_and_the_loss_is_told(logs: Path) -> None:
    raw = logs / "engine.raw"
    writer = LogWriter(str(logs), 64 << 20, 9)
    pump = RawPump(str(raw), "engine", ("sk-0123456789",), writer, Libc())
    with raw.open("ab") as engine:
        engine.truncate(2 * RAW_BYTES_MAX)
        engine.write(b"the end\n")
    pump.step(0.0, NOW_S)
    assert pump.trouble.lost_bytes > RAW_BYTES_MAX
    pump.close()
    writer.close()


def test_no_key_is_kept_however_an_engine_writes_it(world: World) -> None:
    key = "sk-0123456789abcdef"
    script = f"""
import os, time
for part in ("key=sk-01", "23456789", "abcdef|", "x" * 9000 + {key!r} + "y" * 9000, chr(10)):
    os.write(1, part.encode())
    time.sleep(0.06)
os.write(2, b"args: --api-key {key}" + bytes([10]))
os.write(1, b"last" + bytes([10]))
time.sleep(60)
"""
    shard = world.shard().start(py("engine", script), blank=(key,))
    wait(lambda: "last" in shard.log())
    shard.stop()
    kept = shard.log()
    whole = re.sub(r"\n\S+ engine\+ ", "", kept)
    assert key not in whole
    assert "key=***|" in kept
    assert "args: --api-key ***" in kept
    assert whole.count("x") >= 9000
    assert whole.count("y") >= 9000


def test_logs_are_private_kept_and_tell_sidecars_from_the_engine(world: World) -> None:
    shard = world.shard().start(
        sh("ray", f"echo head; {SLEEPS}"), sh("engine", f"echo hi; {SLEEPS}")
    )
    wait(lambda: " ray| head\n" in shard.log() and " engine| hi\n" in shard.log())
    for file in (shard.directory / "logs").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
    for name in ("record.json", "launch.json", "lock", "sock"):
        assert (shard.directory / name).stat().st_mode & 0o777 == 0o600
    assert Path(f"{shard.directory}.identity").stat().st_mode & 0o777 == 0o600
    shard.stop()
    assert " ray| head\n" in shard.log()


def test_a_flood_is_kept_within_the_bound_of_the_log(world: World) -> None:
    flood = "i=0; while [ $i -lt 30000 ]; do echo number $i; i=$((i+1)); done; echo done-now"
    shard = world.shard().start(
        sh("engine", f"{flood}; {SLEEPS}"), log_bytes_max=50_000, log_files_max=3
    )
    wait(lambda: "done-now" in shard.log())
    shard.stop()
    files = list((shard.directory / "logs").glob("shard.*.log"))
    assert len(files) == 3
    assert all(file.stat().st_size <= 50_000 for file in files)


def test_a_prompt_without_a_line_end_is_shown_after_a_while(world: World) -> None:
    shard = world.shard().start(sh("engine", f"printf loading...; {SLEEPS}"))
    wait(lambda: "engine| loading..." in shard.log())
    shard.stop()
    assert shard.log().count("loading...") == 1
