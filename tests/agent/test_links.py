"""Whom an agent obeys: the highest term of one store, over links that live."""

import logging

import pytest

from llmgw.agent.identity import AnotherAgentError, CopiedDiskError
from llmgw.core.errors import StorageError
from llmgw.core.fleet.report import Report
from llmgw.core.fleet.shard import Phase
from llmgw.testing.control import FakeControl
from llmgw.testing.waiting import eventually
from tests.agent.test_identity import BrokenDisk
from tests.agent.world import Node, is_alive


def warned(report: Report, word: str) -> bool:
    return any(word in warning for warning in report.inventory.warnings)


async def test_the_first_report_comes_at_once_and_tells_who_and_what_the_node_is(
    node: Node,
) -> None:
    node.set(name="gpu-7", labels={"rack": "3"}, version="9.9.9")
    async with node.agent() as agent:
        report = await node.control.until(lambda r: True)
        inventory = report.inventory
        assert inventory.node == agent.who.node == node.control.hellos[0].node
        assert (inventory.name, inventory.machine, inventory.version) == (
            "gpu-7",
            "machine-1",
            "9.9.9",
        )
        assert inventory.labels == {"rack": "3"}
        assert inventory.boot
        assert inventory.cpus
        assert inventory.memory_mib
        assert "llamacpp" in {engine.kind for engine in inventory.engines}
        assert (report.term, report.generation) == (0, 0)


async def test_the_log_says_which_control_plane_it_joined_and_as_whom(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llmgw.wire.dialing")
    node.set(name="gpu-7")
    async with node.agent() as agent:
        told = f"{node.control.endpoint} as gpu-7 (node {agent.who.node}): joined"
        await eventually(lambda: told in caplog.text, saying=lambda: caplog.text)


async def test_reports_go_on_without_any_change(node: Node) -> None:
    node.set(report_s=0.2)
    async with node.agent():
        await node.control.until(lambda r: len(node.control.reports) >= 4)


async def test_a_lower_term_is_refused_and_said_and_the_highest_survives_a_restart(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(term=5)
        await node.control.until(lambda r: r.term == 5)
    node.control.reports.clear()
    async with node.agent():
        await node.control.until(lambda r: r.term == 5)
        assert node.control.hellos[-1].term == 5
        await node.control.assign(spec, term=4)
        await node.control.until(lambda r: warned(r, "term 4 was refused"))
        assert node.control.report.shards == ()
        await node.control.assign(spec, term=6)
        await node.ready(spec.key)
        assert not warned(node.control.report, "refused")
        await node.control.assign(term=6)
        await node.phase(spec.key, Phase.STOPPED)


async def test_an_older_generation_of_a_link_is_no_news(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign()
        newest = await node.control.assign()
        await node.control.until(lambda r: r.generation == newest.generation)
        node.control._generation = 0
        await node.control.assign(spec)
        after = len(node.control.reports)
        await node.control.until(lambda r: len(node.control.reports) > after + 1)
        assert node.control.report.generation == newest.generation
        assert node.control.report.shards == ()


async def test_of_two_leaders_the_one_with_the_higher_term_is_obeyed(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with FakeControl(term=2).running() as rival, node.agent(node.control, rival):
        await rival.assign(spec)
        await rival.until(lambda r: r.term == 2)
        await node.control.assign(term=1)
        await node.control.until(lambda r: warned(r, "term 1 was refused"))
        await node.ready(spec.key)
        await rival.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_two_stores_that_claim_a_node_are_an_error_that_both_see(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    rival = FakeControl(term=9, store="store-2")
    async with rival.running(), node.agent(node.control, rival):
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
        assert pid is not None
        await rival.assign()
        for control in (node.control, rival):
            await control.until(lambda r: warned(r, "two stores claim"))
        assert is_alive(pid)
        assert node.control.report.term == 1
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_node_moves_to_another_store_when_the_old_one_is_gone(node: Node) -> None:
    async with node.agent():
        await node.control.assign()
        await node.control.until(lambda r: r.term == 1)
    rival = FakeControl(term=2, store="store-2")
    async with rival.running(), node.agent(rival):
        await rival.assign()
        await rival.until(lambda r: warned(r, "two stores"))
        await rival.until(lambda r: r.term == 2, within_s=15.0)
        assert not warned(rival.report, "two stores")


async def test_a_term_that_cannot_be_written_down_is_not_obeyed_until_it_can(
    node: Node, port: int
) -> None:
    disk = BrokenDisk(lambda name: name == "term.json")
    node.disk = disk
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        await node.control.until(lambda r: warned(r, "cannot be written down"))
        assert node.control.report.shards == ()
        disk.refuses = lambda name: False
        await node.ready(spec.key)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_control_plane_that_comes_back_hears_everything_again(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    control = FakeControl()
    async with control.running():
        pass
    node.control = control
    async with node.agent():
        async with control.running():
            await control.assign(spec)
            pid = (await node.ready(spec.key)).pid
        control.reports.clear()
        async with control.running():
            await control.until(lambda r: True)
            first = control.reports[0].shards[0]
            assert (first.phase, first.pid) == (Phase.READY, pid)
            await control.assign()
            await node.phase(spec.key, Phase.STOPPED)


async def test_a_second_agent_says_so_and_does_not_run(node: Node) -> None:
    async with node.agent():
        with pytest.raises(AnotherAgentError):
            async with node.agent():
                pass


async def test_an_agent_on_a_copied_disk_does_not_run(node: Node) -> None:
    async with node.agent():
        await node.control.until(lambda r: True)
    node.options.machine.machine_id.write_text("machine-2\n")
    with pytest.raises(CopiedDiskError):
        async with node.agent():
            pass


async def test_a_broken_state_file_is_an_error_and_the_engine_goes_on_until_it_is_mended(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
    assert pid is not None
    path = node.options.state / "node.json"
    whole = path.read_text()
    path.write_text(whole[:10])
    with pytest.raises(StorageError, match=r"node\.json is broken"):
        async with node.agent():
            pass
    assert is_alive(pid)
    path.write_text(whole)
    async with node.agent():
        assert (await node.ready(spec.key)).pid == pid
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
