"""A runner that was killed, and the one that finds what it left."""

import os
import signal
import time
from pathlib import Path

import pytest

from llmgw.runner.record import (
    Command,
    ExitCode,
    Phase,
    identity_path,
    kill_members,
    members,
    truncate_raw,
)
from llmgw.runner.spawn import Gate
from tests.runner.world import World, edit_json, is_alive, pids_in, py, sh, wait

SLEEPS = "while :; do sleep 0.05; done"


def test_a_new_runner_watches_the_engine_of_a_killed_one(world: World) -> None:
    shard = world.shard().start(sh("ray", SLEEPS), sh("engine", SLEEPS))
    engine, began = shard.pid("engine"), shard.record().started_at_boot_s
    shard.kill_runner()
    shard.spawn()
    wait(lambda: "a new runner watches" in shard.record().why, saying=shard.said)
    assert shard.record().phase is Phase.RUNNING
    assert shard.pid("engine") == engine
    assert is_alive(engine)
    assert shard.record().started_at_boot_s == began
    os.kill(engine, signal.SIGKILL)
    assert shard.runner.wait(5) == 0
    end = shard.record().exit
    assert end is not None
    assert (end.command, end.status, end.asked) == ("engine", None, False)
    assert "could not be observed" in end.why
    assert not is_alive(shard.pid("ray"))


def test_a_shard_that_was_taken_over_stops_as_asked(world: World) -> None:
    pids = world.root / "pids"
    engine = sh("engine", f"(trap '' TERM; {SLEEPS}) & echo $! > {pids}; {SLEEPS}")
    shard = world.shard().start(engine)
    wait(lambda: len(pids_in(pids)) == 1)
    shard.kill_runner()
    shard.spawn()
    record = shard.stop()
    assert record.exit is not None
    assert record.exit.asked
    assert not is_alive(pids_in(pids)[0])


def test_a_taken_over_runner_may_be_killed_as_well(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    engine = shard.pid("engine")
    for _ in range(3):
        shard.kill_runner()
        shard.spawn()
        wait(lambda: shard.identity().runner.pid == shard.runner.pid, saying=shard.said)
    assert shard.status().memory.processes >= 1
    assert [known.pid for known in shard.identity().commands] == [engine]
    shard.stop()
    assert not is_alive(engine)


def test_workers_that_outlive_runner_and_engine_are_found_and_killed(world: World) -> None:
    # As vLLM's: the API server is killed and its workers go on, titles rewritten.
    pids = world.root / "pids"
    script = f"""
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("/proc/self/comm", "w").write("VLLM::EngineCor")
    open({str(pids)!r}, "w").write(str(os.getpid()) + chr(10))
time.sleep(60)
"""
    shard = world.shard().start(py("engine", script))
    wait(lambda: len(pids_in(pids)) == 1)
    worker = pids_in(pids)[0]
    # The runner writes down every two seconds that it lives; the worker is older than that.
    born_ticks = shard.identity().commands[0].start_ticks or 0
    wait(lambda: shard.identity().runner.alive_at_ticks > born_ticks + 100)
    shard.kill_runner()
    os.kill(shard.pid("engine"), signal.SIGKILL)
    wait(lambda: not is_alive(shard.pid("engine")))
    found = members(shard.identity())
    assert [process.pid for process in found.processes] == [worker]
    shard.spawn()
    assert shard.runner.wait(5) == 0
    assert not is_alive(worker)
    assert "the engine ended unobserved" in shard.record().why


def test_everything_killed_at_once_ends_unobserved(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    shard.kill_runner()
    kill_members(shard.identity(), 5.0)
    shard.spawn()
    assert shard.runner.wait(5) == 0
    record = shard.record()
    assert record.phase is Phase.ENDED
    assert record.exit is not None
    assert record.exit.status is None
    assert "the runner was killed, and the engine ended unobserved" in record.why


def test_another_boot_is_history_and_nothing_is_touched_or_started(world: World) -> None:
    started = world.root / "started"
    shard = world.shard().start(sh("engine", f"echo $$ >> {started}; {SLEEPS}"))
    shard.stop()
    (shard.directory / "logs" / "engine.raw").write_text("last words\n")
    stranger = world.stranger()
    edit_json(shard.directory / "record.json", phase="running", boot_id="0" * 8)
    known = {"name": "engine", "pid": stranger.pid, "start_ticks": 1}
    edit_json(identity_path(shard.directory), boot_id="0" * 8, commands=[known])
    shard.spawn()
    assert shard.runner.wait(5) == ExitCode.ENDED
    assert shard.record().phase is Phase.ENDED
    assert "the machine restarted" in shard.record().why
    assert " engine| last words\n" in shard.log()
    assert len(pids_in(started)) == 1
    assert stranger.poll() is None
    assert world.heard() == ""


def test_a_runner_killed_before_its_first_command_starts_nothing_later(world: World) -> None:
    started = world.root / "started"
    shard = world.shard().start(sh("engine", f"echo $$ >> {started}; {SLEEPS}"))
    shard.stop()
    started.unlink()
    edit_json(identity_path(shard.directory), commands=[])
    (shard.directory / "record.json").unlink()
    shard.spawn()
    assert shard.runner.wait(5) == 0
    assert "before it had started any command" in shard.record().why
    assert not started.exists()


def test_a_broken_record_is_named_and_nothing_is_touched(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    engine = shard.pid("engine")
    shard.kill_runner()
    whole = (shard.directory / "record.json").read_bytes()
    (shard.directory / "record.json").write_bytes(whole[:40])
    shard.spawn()
    assert shard.runner.wait(5) == ExitCode.BROKEN
    assert "record.json is not JSON" in shard.said()
    assert is_alive(engine)
    killed = kill_members(shard.identity(), 5.0)
    assert not killed.left
    assert not is_alive(engine)


def test_a_stop_goes_on_where_a_killed_runner_left_it(world: World) -> None:
    shard = world.shard().start(sh("engine", f"trap '' TERM; {SLEEPS}"), grace_s=0.5)
    with shard.client() as client:
        client.stop(60.0)
    shard.kill_runner()
    shard.spawn()
    assert shard.runner.wait(5) == 0
    end = shard.record().exit
    assert end is not None
    assert end.asked
    assert end.why.startswith("stopped as asked")


def test_a_launch_that_became_unreadable_does_not_lose_the_engine(world: World) -> None:
    shard = world.shard().start(sh("engine", f"echo sk-secret-key; {SLEEPS}"))
    engine = shard.pid("engine")
    shard.kill_runner()
    (shard.directory / "launch.json").write_text("{")
    shard.spawn()
    wait(lambda: "launch.json cannot be read" in shard.record().why, saying=shard.said)
    shard.stop()
    assert not is_alive(engine)


def test_a_live_stranger_with_the_written_pid_is_left_alone(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    shard.kill_runner()
    kill_members(shard.identity(), 5.0)
    stranger = world.stranger()
    for start_ticks, code in ((1, ExitCode.ENDED), (None, ExitCode.CANNOT_TELL)):
        known = {"name": "engine", "pid": stranger.pid, "start_ticks": start_ticks}
        edit_json(identity_path(shard.directory), commands=[known])
        edit_json(shard.directory / "record.json", phase="running")
        shard.spawn()
        assert shard.runner.wait(5) == code, shard.said()
        # What the first ending wrote is not what the second case is about.
        edit_json(shard.directory / "record.json", exit=None, phase="running")
    assert f"process {stranger.pid} lives, and whether it is" in shard.said()
    assert stranger.poll() is None
    assert world.heard() == ""


def test_what_an_engine_says_while_no_runner_lives_is_logged_by_the_next(world: World) -> None:
    script = "i=0; while :; do i=$((i+1)); echo line-$i-end; sleep 0.002; done"
    shard = world.shard().start(sh("engine", script))
    for _ in range(3):
        said = shard.log().count("\n")
        wait(lambda said=said: shard.log().count("\n") > said + 20)  # type: ignore[misc]
        shard.kill_runner()
        raw = shard.directory / "logs" / "engine.raw"
        size = raw.stat().st_size
        wait(lambda size=size, raw=raw: raw.stat().st_size > size + 500)  # type: ignore[misc]
        shard.spawn()
    said = shard.log().count("\n")
    wait(lambda: shard.log().count("\n") > said + 20, saying=shard.said)
    shard.stop()
    words = (line.split()[-1] for line in shard.log().splitlines() if " engine| " in line)
    numbers = [int(word.split("-")[1]) for word in words if word.endswith("-end")]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1)), "lines were lost"
    # At most the last unpunched piece is logged twice, after each of the three kills.
    assert len(numbers) - len(set(numbers)) < 100
    assert not list((shard.directory / "logs").glob("*.raw"))


def test_a_raw_file_without_a_runner_is_cut_to_its_bound_at_a_line(world: World) -> None:
    shard = world.shard().start(sh("engine", f"sleep 0.3; seq 1 50000; {SLEEPS}"))
    shard.kill_runner()
    raw = shard.directory / "logs" / "engine.raw"
    wait(lambda: raw.exists() and raw.read_bytes().endswith(b"\n50000\n"))
    before = raw.stat().st_blocks
    assert truncate_raw(shard.directory, 20_000) > 200_000
    assert raw.stat().st_blocks < before
    assert truncate_raw(shard.directory, 20_000) == 0
    shard.spawn()
    wait(lambda: " 50000\n" in shard.log(), saying=shard.said)
    shard.stop()
    lines = [line.split()[-1] for line in shard.log().splitlines() if " engine| " in line]
    first = int(lines[0])
    assert 45_000 < first < 50_000
    assert lines == [str(number) for number in range(first, 50_001)]


def test_a_program_runs_only_after_it_was_written_down(world: World) -> None:
    """The child of a runner that is killed between fork and gate ends without running anything."""
    ran, born = world.root / "ran", world.root / "born"
    command = sh("engine", f"echo ran > {ran}; {SLEEPS}")
    owner = os.fork()
    if owner == 0:
        _fork_and_wait_to_be_killed(command, born)
    wait(lambda: len(pids_in(born)) == 1)
    child = pids_in(born)[0]
    assert is_alive(child)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    wait(lambda: not is_alive(child))
    assert not ran.exists()


def _fork_and_wait_to_be_killed(command: Command, born: Path) -> None:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        gate = Gate(command, null, os.dup(null), None)
        part = born.with_suffix(".part")
        part.write_text(f"{gate.process.pid}\n")
        part.rename(born)
        signal.pause()
    finally:
        os._exit(1)


@pytest.mark.parametrize("after_ms", [20, 60, 90, 120, 160])
def test_a_runner_killed_at_any_moment_never_leads_to_two_engines(
    world: World, after_ms: int
) -> None:
    started = world.root / "started"
    shard = world.shard().prepare(
        sh("ray", f"echo $$ >> {started}.ray; {SLEEPS}"),
        sh("engine", f"echo $$ >> {started}; {SLEEPS}"),
    )
    began_s = time.monotonic()
    shard.spawn()
    wait(lambda: time.monotonic() - began_s > after_ms / 1000)
    shard.kill_runner()
    # Only one that was killed before it wrote anything may begin; all others never start again.
    may_begin = not Path(identity_path(shard.directory)).exists()
    before = len(pids_in(started))
    shard.spawn()
    wait(lambda: shard.phase() in (Phase.RUNNING, Phase.ENDED), saying=shard.said)
    if shard.runner.poll() is None:
        wait(lambda: shard.phase() is Phase.ENDED or shard.runner.poll() is None)
    if shard.phase() is Phase.RUNNING:
        shard.stop()
    else:
        shard.runner.wait(5)
    assert len(pids_in(started)) <= 1
    assert may_begin or len(pids_in(started)) - before <= 1
    assert shard.record().phase is Phase.ENDED
    left = [pid for pid in pids_in(started) + pids_in(Path(f"{started}.ray")) if is_alive(pid)]
    assert not left
