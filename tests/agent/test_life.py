"""A shard's life under a real agent, a real runner and a small engine."""

import asyncio
import os
import signal

from llmgw.core.fleet.shard import Phase
from llmgw.runner.record import Process, all_processes
from llmgw.testing.waiting import eventually
from tests.agent.world import REPLICA, Node, is_alive


async def test_an_assigned_shard_becomes_ready_and_is_stopped_when_it_leaves_the_assignment(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.until(lambda r: r.shards == ())
        await node.control.assign(spec, keys={REPLICA: "secret-key-1"})
        shard = await node.ready(spec.key)
        assert shard.pid is not None
        assert shard.keyed
        assert is_alive(shard.pid)
        await node.control.until(lambda r: r.shards[0].running == 2)
        await node.control.assign()
        ended = await node.phase(spec.key, Phase.STOPPED)
        assert not is_alive(shard.pid)
        assert ended.pid is None


async def test_a_restarted_agent_finds_the_same_process_and_restarts_nothing(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec, keys={REPLICA: "secret-key-1"})
        pid = (await node.ready(spec.key)).pid
    node.control.reports.clear()
    async with node.agent():
        await node.control.until(lambda r: True)
        first = node.control.reports[0].shards[0]
        assert (first.phase, first.pid, first.keyed) == (Phase.READY, pid, True)
        assert first.answered_ago_s is not None
        await node.control.assign(spec, keys={REPLICA: "secret-key-1"})
        await node.control.until(lambda r: r.generation == 2)
        assert (await node.ready(spec.key)).pid == pid
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_restarted_agent_asks_at_once_how_its_engines_are(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
    node.control.reports.clear()
    node.set(probe_ready_s=3600.0)
    async with node.agent():
        await node.control.until(lambda r: r.shards[0].running is not None)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_before_the_first_assignment_all_is_kept_and_then_what_is_not_in_it_is_stopped(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
    assert pid is not None
    async with node.agent():
        node.control.reports.clear()
        await node.control.until(lambda r: r.shards[0].phase is Phase.READY)
        assert is_alive(pid)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
        assert not is_alive(pid)


async def test_a_kept_shard_is_neither_stopped_nor_started(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
        assert pid is not None
        await node.control.assign(keep=(spec.key,))
        await node.control.until(lambda r: r.generation == 2)
        assert (await node.ready(spec.key)).pid == pid
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_an_engine_that_dies_is_a_failure_noticed_at_once_with_its_reason(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        failed = await node.phase(spec.key, Phase.FAILED, within_s=3.0)
        assert failed.exit_status == -signal.SIGKILL
        assert "SIGKILL" in failed.why


async def test_an_exit_at_the_start_tells_the_last_line_and_the_same_incarnation_stays_ended(
    node: Node, port: int
) -> None:
    spec = node.spec(port, environment={"ENGINE_EXIT": "0"})
    async with node.agent():
        await node.control.assign(spec)
        failed = await node.phase(spec.key, Phase.FAILED)
        assert failed.exit_status == 0
        assert "told to fail" in failed.why
        commands = node.commands(spec.key)
        await node.control.assign(spec)
        await node.control.until(lambda r: r.generation == 2)
        assert node.commands(spec.key) == commands
        later = node.spec(port, incarnation=2)
        await node.control.assign(later)
        await node.ready(later.key)
        await node.control.assign()
        await node.phase(later.key, Phase.STOPPED)


async def test_loading_is_shown_until_the_model_is_listed(node: Node, port: int) -> None:
    spec = node.spec(port, environment={"ENGINE_LOAD_S": "1"})
    async with node.agent():
        await node.control.assign(spec)
        loading = await node.phase(spec.key, Phase.LOADING)
        assert "loads the model" in loading.why
        await node.ready(spec.key)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_killed_runner_is_replaced_while_the_engine_goes_on(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
        assert pid is not None
        first = node.runner_pid(spec.key)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: node.runner_pid(spec.key) != first)
        await node.control.until(lambda r: any("took over" in event.what for event in r.events))
        shard = await node.ready(spec.key)
        assert shard.pid == pid
        assert is_alive(pid)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
        assert not is_alive(pid)


async def test_runner_and_engine_killed_while_no_agent_lived_are_a_failure_and_not_restarted(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        pid = (await node.ready(spec.key)).pid
    assert pid is not None
    os.kill(node.runner_pid(spec.key), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    node.control.reports.clear()
    async with node.agent():
        await node.control.until(lambda r: True)
        assert node.control.reports[0].shards[0].phase is Phase.FAILED
        await node.control.assign(spec)
        await node.control.until(lambda r: r.generation == 2)
        assert node.control.report.shards[0].phase is Phase.FAILED


async def test_what_ignores_sigterm_is_killed_after_its_grace_with_its_children(
    node: Node, port: int
) -> None:
    deaf = {"ENGINE_DEAF": "1", "ENGINE_CHILD": "1"}
    spec = node.spec(port, environment=deaf, stop_grace_s=0.5)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        session = node.runner_pid(spec.key)
        pids = [p.pid for p in await asyncio.to_thread(sessions, session) if p.pid != session]
        assert len(pids) >= 2
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
        assert not any(map(is_alive, pids))


async def test_a_stop_that_a_stopped_runner_does_not_hear_is_explained_and_done_later(
    node: Node, port: int
) -> None:
    spec = node.spec(port, stop_grace_s=0.5)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        runner = node.runner_pid(spec.key)
        os.kill(runner, signal.SIGSTOP)
        try:
            await node.control.assign()
            await node.control.until(
                lambda report: "no answer" in report.shards[0].why, within_s=20.0
            )
            assert node.control.report.shards[0].phase is Phase.READY
        finally:
            os.kill(runner, signal.SIGCONT)
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_stop_that_cannot_be_asked_for_since_the_directory_is_gone_is_explained(
    node: Node, port: int
) -> None:
    spec = node.spec(port, stop_grace_s=0.5)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        os.rename(node.runs / str(spec.key), node.runs.parent / "moved")
        await node.control.assign()
        await node.control.until(lambda report: "No such file" in report.shards[0].why)
        os.rename(node.runs.parent / "moved", node.runs / str(spec.key))
        await node.phase(spec.key, Phase.STOPPED)


def sessions(session: int) -> list[Process]:
    return [process for process in all_processes() if process.session == session]
