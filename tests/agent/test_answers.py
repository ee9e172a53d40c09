"""What an agent tells: logs on request, metrics, health, and what it sees on its ports."""

import asyncio
import socket
from collections.abc import Callable, Iterator

import aiohttp
import pytest

from llmgw.core.fleet.shard import Phase
from llmgw.testing.control import FakeControl
from llmgw.testing.waiting import eventually
from llmgw.wire.messages import Answer
from tests.agent.world import REPLICA, Node

KEY = "secret-key-0123456789"


def answered(control: FakeControl, number: int) -> list[Answer]:
    return [answer for answer in control.answers if answer.id == number]


def lines(control: FakeControl, number: int) -> list[str]:
    return [line for answer in answered(control, number) for line in answer.lines]


async def last(control: FakeControl, number: int) -> Answer:
    await eventually(lambda: any(answer.last for answer in answered(control, number)), within_s=10)
    return answered(control, number)[-1]


async def test_a_log_is_answered_without_its_key_while_the_engine_lives_and_after(
    node: Node, port: int
) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec, keys={REPLICA: KEY})
        await node.ready(spec.key)
        number = await node.control.ask(str(spec.key), lines="50", follow="1")
        await eventually(lambda: "listening with key ***" in str(lines(node.control, number)))
        assert answered(node.control, number)[0].error == ""
        assert KEY not in str(node.control.answers)
        assert KEY not in str(node.control.reports)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
        again = await node.control.ask(str(spec.key), lines="50")
        await last(node.control, again)
        assert any("listening" in line for line in lines(node.control, again))


async def test_a_followed_log_ends_with_the_shard(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        number = await node.control.ask(str(spec.key), lines="0", follow="1")
        await eventually(lambda: bool(answered(node.control, number)))
        assert not answered(node.control, number)[-1].last
        await node.control.assign()
        await last(node.control, number)
        assert any("stop" in line for line in lines(node.control, number))


async def test_a_question_taken_back_is_answered_no_more(node: Node, port: int) -> None:
    spec = node.spec(port)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        number = await node.control.ask(str(spec.key), follow="1")
        await eventually(lambda: bool(answered(node.control, number)))
        await node.control.cancel(number)
        other = await node.control.ask(str(spec.key))
        await last(node.control, other)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
        assert not any(answer.last for answer in answered(node.control, number))


@pytest.mark.parametrize("subject", ["k3v9qd2m7a.9.0", "../../etc", ""])
async def test_a_question_about_what_is_not_there_gets_a_sentence(node: Node, subject: str) -> None:
    async with node.agent():
        await node.control.until(lambda r: True)
        number = await node.control.ask(subject)
        assert "no shard" in (await last(node.control, number)).error


async def test_metrics_and_health_are_served(node: Node, port: int) -> None:
    node.set(http_port=0)
    spec = node.spec(port)
    async with node.agent() as agent:
        assert agent.http is not None
        await agent.http.listening.wait()
        await node.control.assign(spec)
        await node.ready(spec.key)
        base = f"http://127.0.0.1:{agent.http.port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/metrics") as answer:
                text = await answer.text()
            async with session.get(f"{base}/healthz") as answer:
                health = await answer.json()
        assert 'llmgw_agent_shards{phase="ready"} 1.0' in text
        assert "llmgw_agent_links 1.0" in text
        assert (health["status"], health["shards"], health["links"]) == ("ok", 1, 1)
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


@pytest.fixture
def squatter() -> Iterator[socket.socket]:
    """A stranger that listens on a port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


async def test_a_taken_port_is_a_failure_named_as_such_and_nothing_is_started(
    node: Node, squatter: socket.socket
) -> None:
    spec = node.spec(squatter.getsockname()[1])
    async with node.agent():
        await node.control.assign(spec)
        failed = await node.phase(spec.key, Phase.FAILED)
        assert failed.port_taken
        assert failed.started_ago_s is None


async def test_ports_of_the_range_that_others_hold_are_reported_and_our_own_are_not(
    node: Node, squatter: socket.socket, ports: Callable[[], int]
) -> None:
    taken, own = squatter.getsockname()[1], ports()
    node.set(ports=type(node.options.ports)(1024, 65535))
    spec = node.spec(own)
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        await node.control.until(lambda r: taken in r.inventory.ports_taken)
        assert own not in node.control.report.inventory.ports_taken
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_a_stranger_that_answers_for_a_starting_engine_is_not_our_ready(
    node: Node, ports: Callable[[], int]
) -> None:
    number = ports()
    spec = node.spec(number, environment={"ENGINE_SLEEP": "1"})
    async with node.agent():
        await node.control.assign(spec)
        await node.phase(spec.key, Phase.STARTING)
        engine = node.options.engines["llamacpp"].split()
        argv = (*engine, *spec.commands[0].argv[1:])
        stranger = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
        try:
            await node.control.until(lambda r: "not this shard's" in r.shards[0].why)
            assert node.control.report.shards[0].phase is Phase.STARTING
        finally:
            stranger.kill()
            await stranger.wait()
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_an_overdue_start_is_said_and_the_engine_is_left_alone(node: Node, port: int) -> None:
    spec = node.spec(port, environment={"ENGINE_LOAD_S": "60"}, start_timeout_s=0.5)
    async with node.agent():
        await node.control.assign(spec)
        await node.control.until(lambda r: bool(r.shards) and "at most" in r.shards[0].why)
        shard = await node.phase(spec.key, Phase.LOADING)
        assert shard.pid is not None
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)


async def test_an_engine_that_stops_answering_stays_ready_with_a_sentence_that_says_so(
    node: Node, port: int
) -> None:
    spec = node.spec(port, environment={"ENGINE_MUTE_AFTER": "3"})
    async with node.agent():
        await node.control.assign(spec)
        await node.ready(spec.key)
        await node.control.until(lambda r: (r.shards[0].answered_ago_s or 0) > 1.0)
        assert node.control.report.shards[0].phase is Phase.READY
        await node.control.assign()
        await node.phase(spec.key, Phase.STOPPED)
