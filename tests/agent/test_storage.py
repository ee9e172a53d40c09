"""Disks that refuse: what cannot start is a failure with the reason, what runs goes on."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import ReplicaId
from llmgw.testing.waiting import eventually
from tests.agent.test_identity import BrokenDisk
from tests.agent.world import Node
from tests.guards.parts import require


async def test_a_start_without_room_on_the_disk_is_a_failure_that_leaves_nothing(
    node: Node, port: int
) -> None:
    disk = BrokenDisk(lambda name: name == "spec.json")
    node.disk = disk
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        failed = await node.phase(spec.key, Phase.FAILED)
        assert "disk is full" in failed.why
        assert not (node.runs / str(spec.key)).exists()
        disk.refuses = lambda name: False
        later = node.spec(port, incarnation=2)
        await node.control.assign(later)
        await node.ready(later.key)
        await node.control.assign()
        await node.phase(later.key, Phase.STOPPED)


async def test_a_ready_that_cannot_be_written_down_is_ready_all_the_same(
    node: Node, port: int
) -> None:
    node.disk = BrokenDisk(lambda name: name == "ready.json")
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        await node.control.until(lambda r: any("ready.json" in e.what for e in r.events))
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


@pytest.fixture
def cover(node: Node) -> Iterator[Callable[[], None]]:
    """Cover the state directory by a read-only view of itself; modes would not stop root."""
    folder = str(node.options.state)

    def put_on() -> None:
        mount = ["mount", "--bind", "-o", "ro", folder, folder]
        mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
        require("mounts", here=mounted, how="run as root")

    yield put_on
    take_off(node)


def take_off(node: Node) -> None:
    """Mend it."""
    while f" {node.options.state} " in Path("/proc/self/mountinfo").read_text():
        subprocess.run(["umount", "--lazy", str(node.options.state)], check=True)


async def test_with_a_read_only_state_directory_the_agent_goes_on_and_recovers_when_it_is_mended(
    node: Node, ports: Callable[[], int], cover: Callable[[], None]
) -> None:
    spec = node.spec(ports())
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
        assert pid is not None
        await asyncio.to_thread(cover)
        other = replace(node.spec(ports()), replica=ReplicaId("zzzzzzzzzz"))
        await node.control.assign(spec, other)
        failed = await node.phase(other.key, Phase.FAILED)
        assert "read-only" in failed.why
        await node.control.assign(spec, term=2)
        await node.control.until(lambda r: any("written down" in w for w in r.inventory.warnings))
        assert (await node.ready(spec.key)).pid == pid
    node.control.reports.clear()
    async with node.agent():
        assert (await node.ready(spec.key)).pid == pid
        await asyncio.to_thread(take_off, node)
        later = replace(other, incarnation=2)
        await node.control.assign(spec, later, term=2)
        await node.ready(later.key)
        assert node.control.report.term == 2
        await node.control.assign(term=2)
        await node.phase(later.key, Phase.STOPPED)
        await node.phase(spec.key, Phase.STOPPED)


async def test_ended_runs_are_pruned_and_the_last_few_keep_their_logs(
    node: Node, port: int
) -> None:
    node.set(ended_per_replica=2)
    async with node.agent():
        for incarnation in range(1, 5):
            spec = node.spec(port, incarnation, environment={"ENGINE_EXIT": "1"})
            await node.control.assign(spec)
            await node.phase(spec.key, Phase.FAILED)
        await node.control.assign()
        await eventually(
            lambda: kept(node) == {"3", "4"}, within_s=15.0, saying=lambda: str(kept(node))
        )
        await node.control.until(lambda r: len(r.shards) == 2)
        assert len(list(node.runs.glob("*.identity"))) == 2


def kept(node: Node) -> set[str]:
    return {path.name.split(".")[1] for path in node.runs.iterdir() if path.is_dir()}
