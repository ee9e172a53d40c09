"""GPUs under a real agent: handed out again only when the driver shows them free."""

import json
import os
from collections.abc import Callable
from dataclasses import replace

from llmgw.core.fleet.report import Report
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import ReplicaId
from llmgw.testing.hardware import ScriptedDriver
from tests.agent.world import Node, is_alive


def unusable(report: Report) -> dict[str, str]:
    return {gpu.uuid: gpu.unusable for gpu in report.inventory.gpus if gpu.unusable}


async def test_memory_that_does_not_come_back_quarantines_the_gpu_until_it_does(
    node: Node, port: int
) -> None:
    driver = ScriptedDriver.with_gpus(2, used_mib=450)
    node.driver = driver
    spec = node.spec(port, gpus=("GPU-0",))
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
        assert pid is not None
        driver.use("GPU-0", 30_450, {pid: 30_000})
        await node.control.until(lambda r: r.inventory.gpus[0].memory_used_mib == 30_450)
        assert unusable(node.control.report) == {}
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
        report = await node.control.until(lambda r: bool(unusable(r)))
        assert f"process {pid}" in unusable(report)["GPU-0"]
        driver.use("GPU-0", 5_000, {})
        await node.control.until(lambda r: "5000 MiB are still used" in str(unusable(r)))
    node.control.reports.clear()
    async with node.agent():
        report = await node.control.until(lambda r: True)
        assert str(spec.key) in unusable(report)["GPU-0"]
        driver.use("GPU-0", 460, {})
        await node.control.until(lambda r: unusable(r) == {})


async def test_a_stranger_on_a_gpu_is_reported_and_left_alone(node: Node) -> None:
    driver = ScriptedDriver.with_gpus(2)
    node.driver = driver
    driver.use("GPU-1", 900, {os.getpid(): 800})
    async with node.agent():
        report = await node.control.until(lambda r: bool(unusable(r)))
        assert "stranger" in unusable(report)["GPU-1"]
        assert list(unusable(report)) == ["GPU-1"]


async def test_an_engine_sees_its_gpus_as_numbers_in_pci_order_and_nothing_of_the_agent_s(
    node: Node, port: int
) -> None:
    node.driver = ScriptedDriver.with_gpus(3)
    spec = node.spec(port, gpus=("GPU-2", "GPU-0"))
    async with node.agent():
        await node.control.assign(spec)
        shard = await node.ready(spec.key)
        environment = environment_of(shard.pid)
        assert environment["CUDA_VISIBLE_DEVICES"] == "2,0"
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert "VLLM_PORT" not in environment
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_an_engine_without_gpus_sees_none(node: Node, port: int) -> None:
    node.driver = ScriptedDriver.with_gpus(1)
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        shard = await node.ready(spec.key)
        assert environment_of(shard.pid)["CUDA_VISIBLE_DEVICES"] == ""
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_start_whose_baseline_cannot_be_written_down_is_a_failure_and_starts_nothing(
    node: Node, port: int
) -> None:
    node.driver = ScriptedDriver.with_gpus(1)
    spec = node.spec(port, gpus=("GPU-0",))
    async with node.agent():
        await node.control.until(lambda r: True)
        # Two things under one name: a folder where the file belongs, and root may write anywhere.
        grants = node.options.state / "gpus.json"
        grants.unlink(missing_ok=True)
        grants.mkdir()
        await node.control.assign(spec)
        failed = await node.phase(spec.key, Phase.FAILED)
        assert "gpus.json" in failed.why
        assert not (node.runs / str(spec.key)).exists()
        grants.rmdir()
        later = node.spec(port, incarnation=2, gpus=("GPU-0",))
        await node.control.assign(later)
        await node.ready(later.key)
        await node.control.assign()
        await node.phase(later.key, Phase.STOPPED)


async def test_a_node_without_gpus_has_nothing_to_prove(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
        assert pid is not None
        assert not is_alive(pid)
        assert node.control.report.inventory.gpus == ()


async def test_broken_grants_are_kept_aside_and_written_anew(node: Node) -> None:
    node.driver = ScriptedDriver.with_gpus(1)
    node.options.state.mkdir()
    grants = node.options.state / "gpus.json"
    grants.write_text("{")
    async with node.agent():
        await node.control.until(lambda r: len(r.inventory.gpus) == 1)
        assert (node.options.state / "gpus.broken").read_text() == "{"
        assert json.loads(grants.read_text())["grants"] == []


def environment_of(pid: int | None) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = file.read().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


async def test_a_gpu_whose_memory_is_not_back_is_waited_for_whatever_was_placed(
    node: Node, port: int
) -> None:
    driver = ScriptedDriver.with_gpus(1)
    node.driver = driver
    spec = node.spec(port, gpus=("GPU-0",))
    later = node.spec(port, incarnation=2, gpus=("GPU-0",))
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        driver.use("GPU-0", 9_000, {})
        await node.control.assign(later)
        await node.phase(spec.key, Phase.STOPPED)
        report = await node.control.until(lambda r: "GPU" in r.waiting.get(str(later.key), ""))
        assert [shard.key for shard in report.shards] == [spec.key]
        driver.use("GPU-0", 0, {})
        await node.ready(later.key)
        await node.control.assign()
        await node.phase(later.key, Phase.STOPPED)


async def test_two_whole_shards_never_have_one_gpu_and_halves_may(
    node: Node, ports: Callable[[], int]
) -> None:
    node.driver = ScriptedDriver.with_gpus(1)
    specs = [
        replace(node.spec(ports(), gpus=("GPU-0",)), replica=ReplicaId(name * 10), memory_share=0.5)
        for name in "abc"
    ]
    async with node.agent():
        await node.control.assign(*specs)
        await node.ready(specs[0].key)
        await node.ready(specs[1].key)
        await node.control.until(
            lambda r: "give GPU-0 back" in r.waiting.get(str(specs[2].key), "")
        )
        await node.control.assign(*specs[1:])
        await node.ready(specs[2].key)
        await node.control.assign()
        await node.phase(specs[2].key, Phase.STOPPED)
        await node.phase(specs[1].key, Phase.STOPPED)
