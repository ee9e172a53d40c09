"""What an agent does where files lie, are gone or were never finished: never kill too much."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.core.document import dump
from llmgw.core.fleet.report import Report
from llmgw.core.fleet.shard import Phase
from llmgw.runner.record import Command, Launch, all_processes, write_launch
from llmgw.testing.hardware import ScriptedDriver
from llmgw.testing.waiting import eventually
from tests.agent.world import Node, is_alive

START_TICKS = 19


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A live process that writes down each signal it gets."""
    heard = tmp_path / "heard"
    traps = "; ".join(f"trap 'echo {s} >> {heard}' {s}" for s in ("TERM", "INT", "HUP", "CONT"))
    script = f"{traps}; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    yield process
    assert process.poll() is None, "the stranger was killed"
    assert not heard.exists(), heard.read_text()
    process.kill()
    process.wait()


def start_ticks(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(stat[START_TICKS])


async def ready_and_left(node: Node, port: int) -> int:
    """Start a shard, let the agent go, and return the engine's pid."""
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
    assert pid is not None
    node.control.reports.clear()
    return pid


async def test_a_shard_that_cannot_be_described_is_ended_by_its_identity_with_an_event(
    node: Node, port: int
) -> None:
    pid = await ready_and_left(node, port)
    key = node.spec(port).key
    (node.runs / str(key) / "spec.json").write_text('{"replica": "k3v')
    async with node.agent():
        report = await node.control.until(lambda r: True)
        assert not is_alive(pid)
        assert report.shards[0].phase is Phase.FAILED
        assert report.shards[0].spec is None
        assert "spec.json is broken" in report.events[0].what


async def test_a_removed_directory_does_not_hide_whose_processes_these_are(
    node: Node, port: int
) -> None:
    pid = await ready_and_left(node, port)
    shutil.rmtree(node.runs / str(node.spec(port).key))
    async with node.agent():
        report = await node.control.until(lambda r: True)
        assert not is_alive(pid)
        assert report.shards[0].phase is Phase.FAILED


async def test_where_neither_can_be_read_nothing_is_killed_and_its_gpus_are_quarantined_by_name(
    node: Node, port: int
) -> None:
    driver = ScriptedDriver.with_gpus(3)
    node.driver = driver
    spec = node.spec(port, gpus=("GPU-1",))
    async with node.agent():
        await node.control.until(lambda r: len(r.inventory.gpus) == 3)
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
    assert pid is not None
    node.control.reports.clear()
    spec_file, identity = node.runs / str(spec.key) / "spec.json", node.identity(spec.key)
    whole = spec_file.read_text(), identity.read_text()
    spec_file.write_text("")
    identity.write_text("{")
    async with node.agent():
        report = await node.control.until(lambda r: True)
        assert is_alive(pid)
        assert "nothing was killed" in report.shards[0].why
        unusable = {gpu.uuid: gpu.unusable for gpu in report.inventory.gpus if gpu.unusable}
        assert list(unusable) == ["GPU-1"]
        assert str(spec.key) in unusable["GPU-1"]
        await node.control.assign(node.spec(port, incarnation=2, gpus=("GPU-2",)))
        await node.control.until(lambda r: bool(r.waiting))
        # An operator restores the files: it is taken up again as it is.
        spec_file.write_text(whole[0])
        identity.write_text(whole[1])
        await node.control.assign(spec)
        assert (await node.ready(spec.key)).pid == pid
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_blind_run_of_which_no_grant_is_known_quarantines_what_no_other_run_holds(
    node: Node,
) -> None:
    node.driver = ScriptedDriver.with_gpus(2)
    folder = node.runs / "lostreplic.1.0"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{")
    (folder / "launch.json").write_text("{")
    async with node.agent():
        report = await node.control.until(lambda r: len(r.inventory.gpus) == 2)
        assert all("lostreplic.1.0" in gpu.unusable for gpu in report.inventory.gpus)
        shutil.rmtree(folder)
        await node.control.until(lambda r: not any(g.unusable for g in r.inventory.gpus))


async def test_a_record_of_another_boot_is_history_and_the_next_incarnation_starts(
    node: Node, port: int
) -> None:
    pid = await ready_and_left(node, port)
    key = node.spec(port).key
    for process in (node.runner_pid(key), pid):
        os.kill(process, signal.SIGKILL)
    await eventually(lambda: not is_alive(pid))
    node.edit(node.identity(key), boot_id="another-boot")
    node.edit(node.runs / str(key) / "record.json", boot_id="another-boot")
    async with node.agent():
        report = await node.control.until(lambda r: True)
        assert report.shards[0].phase is Phase.FAILED
        assert report.shards[0].why == "the machine restarted"
        later = node.spec(port, incarnation=2)
        await node.control.assign(later)
        await node.ready(later.key)
        await node.control.assign()
        await node.phase(later.key, Phase.STOPPED)


@pytest.mark.parametrize("ticks", ["wrong", "none"])
async def test_a_recycled_pid_is_a_stranger_that_gets_no_signal(
    node: Node, port: int, stranger: subprocess.Popen[bytes], ticks: str
) -> None:
    pid = await ready_and_left(node, port)
    key = node.spec(port).key
    for process in (node.runner_pid(key), pid):
        os.kill(process, signal.SIGKILL)
    await eventually(lambda: not is_alive(pid))
    real = start_ticks(stranger.pid)
    recycled = {"pid": stranger.pid, "start_ticks": real - 100 if ticks == "wrong" else None}
    command = {"name": "llama-server", **recycled}
    node.edit(node.identity(key), **recycled, session=stranger.pid, commands=[command])
    record = node.runs / str(key) / "record.json"
    commands = json.loads(record.read_text())["commands"]
    node.edit(record, commands=[{**commands[0], **recycled}])
    async with node.agent():
        await node.control.until(lambda r: r.shards[0].phase is Phase.FAILED)
        asked = await node.control.assign()
        await node.control.until(lambda r: r.generation == asked.generation)
        doubted = [shard.why for shard in node.control.report.shards if "cannot tell" in shard.why]
        assert bool(doubted) == (ticks == "none")


async def test_an_agent_killed_between_spawning_a_runner_and_learning_of_it_leads_to_one_engine(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    folder = await asyncio.to_thread(prepared, node, port)
    slow = await asyncio.to_thread(spawned_late, folder)
    async with node.agent():
        await node.control.until(lambda r: r.shards[0].phase is Phase.WAITING)
        await node.control.assign(spec)
        await node.ready(spec.key)
        await eventually(lambda: slow.poll() is not None or node.runner_pid(spec.key) == slow.pid)
        assert len(await processes_with(str(port))) == 1
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
    await asyncio.to_thread(slow.wait, 10)


async def test_what_was_prepared_and_is_not_assigned_any_more_is_never_started(
    node: Node, port: int
) -> None:
    folder = await asyncio.to_thread(prepared, node, port)
    async with node.agent():
        await node.control.until(lambda r: len(r.shards) == 1)
        await node.control.assign()
        await node.phase(node.spec(port).key, Phase.STOPPED)
        late = await asyncio.to_thread(spawned_late, folder)
        assert await asyncio.to_thread(late.wait, 10) != 0
        assert await processes_with(str(port)) == []


async def test_what_an_agent_had_only_begun_to_make_is_removed(node: Node, port: int) -> None:
    folder = await asyncio.to_thread(prepared, node, port)
    (folder / "launch.json").unlink()
    (folder / "spec.json").unlink()
    async with node.agent():
        report = await node.control.until(lambda r: True)
        assert report.shards == ()
        assert not folder.exists()


async def test_an_identity_that_is_gone_leaves_the_engine_alone_and_blocks_its_successor(
    node: Node, port: int
) -> None:
    pid = await ready_and_left(node, port)
    key = node.spec(port).key
    os.kill(node.runner_pid(key), signal.SIGKILL)
    kept = node.identity(key).read_text()
    node.identity(key).unlink()
    async with node.agent():

        def doubted(report: Report) -> bool:
            return "cannot tell" in report.shards[0].why

        await node.control.until(doubted)
        await node.control.assign(node.spec(port + 1, incarnation=2))
        await node.control.until(lambda r: bool(r.waiting))
        assert is_alive(pid)
    node.identity(key).write_text(kept)


def spawned_late(folder: Path) -> subprocess.Popen[bytes]:
    """A runner that takes its time to come so far as to lock its directory."""
    script = f"sleep 0.3; exec {sys.executable} -P -m llmgw.runner {folder}"
    return subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)


def prepared(node: Node, port: int) -> Path:
    """Make the directory of a shard as an agent does before it spawns the runner."""
    spec = node.spec(port)
    folder = node.runs / str(spec.key)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(dump(spec))
    engine = node.options.engines["llamacpp"].split()
    argv = (*engine, *spec.commands[0].argv[1:])
    command = Command("llama-server", argv, {"PATH": os.environ["PATH"]})
    write_launch(folder, Launch((command,), grace_s=2.0))
    return folder


async def processes_with(argument: str) -> list[int]:
    """Return the engines that have this argument."""

    def look() -> list[int]:
        found: list[int] = []
        for process in all_processes():
            try:
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if argument in words:
                found.append(process.pid)
        return found

    return await asyncio.to_thread(look)
