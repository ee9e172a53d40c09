"""Connections that break, stall and come back: both ends notice, and there is one link after it."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from llmgw.runtime.backoff import Backoff
from llmgw.testing.proxy import Proxy
from llmgw.testing.waiting import eventually
from llmgw.wire.agent_link import AgentServer, ControlLink
from llmgw.wire.dialing import KeepDialing, Pace
from llmgw.wire.errors import LinkLostError
from llmgw.wire.messages import Answer
from tests.wire import values
from tests.wire.ends import CLOCK, DIAL, SILENT_AFTER_S, Control, attach, running, serving
from tests.wire.processes import environment

PACE = Pace(Backoff(first_s=0.05, cap_s=0.2), lived_s=0.2)
NOTICED_S = SILENT_AFTER_S + 4.0
"""A machine under load is late, but not as late as TCP, which says nothing for 15 minutes."""


class Agent:
    """Reports on each link, as agents do."""

    def __init__(self, port: int) -> None:
        self.links: list[ControlLink] = []
        self.dialer = KeepDialing(
            "agent", lambda: attach(port), self._on_link, CLOCK, Random(1), PACE
        )

    async def _on_link(self, link: ControlLink) -> None:
        self.links.append(link)
        await link.send(values.report())
        async for _ in link:
            pass

    @property
    def live(self) -> list[ControlLink]:
        """Links that have not ended."""
        return [link for link in self.links if not link.ended_why]


@asynccontextmanager
async def through_a_proxy(control: Control) -> AsyncIterator[tuple[AgentServer, Proxy, Agent]]:
    """A server, and an agent that keeps dialing it through a proxy."""
    async with serving(control) as server, Proxy(server.ports[0]) as proxy:
        agent = Agent(proxy.port)
        async with running(agent.dialer):
            await eventually(lambda: len(control.heard) == 1)
            yield server, proxy, agent


async def test_a_severed_link_is_replaced_by_one_and_only_one() -> None:
    control = Control()
    async with through_a_proxy(control) as (server, proxy, agent):
        for cuts in range(1, 6):
            before = server.links[0]
            proxy.cut()
            await control.has_heard(cuts + 1)
            assert "lost" in before.ended_why
            assert len(agent.live) == len(server.links) == len(control.live) == 1
            assert server.links[0].id == agent.live[0].id
            assert proxy.accepted == cuts + 1
            assert proxy.connections == 1
    assert control.most_per_node == 1
    assert len({link for link, _ in control.heard}) == 6


async def test_both_ends_notice_a_stall_that_nobody_reports() -> None:
    control = Control()
    async with through_a_proxy(control) as (server, proxy, agent):
        (near,), (far,) = agent.live, control.live
        proxy.stall()
        await eventually(lambda: bool(near.ended_why and far.ended_why), within_s=NOTICED_S)
        assert "nothing was heard from control plane at" in near.ended_why
        assert far.ended_why == f"nothing was heard from node n1 for {SILENT_AFTER_S:g} s"
        with pytest.raises(LinkLostError, match="nothing was heard"):
            await near.send(Answer(1))
        proxy.cut()
        proxy.resume()
        await eventually(lambda: len(control.heard) == 2, within_s=10)
        assert len(server.links) == len(agent.live) == 1
    assert control.most_per_node == 1


async def test_what_was_held_back_by_a_stall_comes_too_late() -> None:
    control = Control()
    async with (
        serving(control) as server,
        Proxy(server.ports[0]) as proxy,
        attach(proxy.port) as old,
    ):
        await eventually(lambda: len(control.live) == 1)
        proxy.stall()
        await old.send(Answer(1, ("from the past",)))
        async with attach(server.ports[0]) as new:  # another way round the broken place
            await eventually(lambda: control.using == [new.id])
            proxy.resume()
            await eventually(lambda: bool(old.ended_why))
            assert f"attached again, as link {new.id}" in old.ended_why
            await new.send(Answer(2))
            await control.has_heard(1)
    assert control.heard == [(new.id, Answer(2))]
    assert control.most_per_node == 1


async def test_a_stall_during_the_handshake_ends_the_dial() -> None:
    async with serving(Control()) as server, Proxy(server.ports[0]) as proxy:
        proxy.stall()
        hasty = replace(DIAL, limits=replace(DIAL.limits, hello_s_max=0.5))
        with pytest.raises(LinkLostError, match=r"did not answer within 0\.5 s"):
            async with attach(proxy.port, options=hasty):
                pass


async def test_a_slow_line_is_no_stall() -> None:
    control = Control()
    loop = asyncio.get_running_loop()
    async with through_a_proxy(control) as (server, proxy, _):
        proxy.delay_s = SILENT_AFTER_S / 4
        until_s = loop.time() + 2 * SILENT_AFTER_S
        await eventually(lambda: loop.time() > until_s)
        assert len(control.links) == 1
        assert not server.links[0].ended_why


async def test_a_refused_connection_is_tried_again() -> None:
    control = Control()
    async with through_a_proxy(control) as (server, proxy, agent):
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: proxy.accepted >= 4)
        assert len(agent.links) == 1
        proxy.resume()
        await eventually(lambda: len(control.heard) == 2)
        assert len(server.links) == 1


async def test_an_agent_process_that_stands_still_is_noticed_and_comes_back() -> None:
    control = Control()
    async with serving(control) as server:
        script = Path(__file__).with_name("agent_process.py")
        process = _python(str(script), str(server.ports[0]))
        try:
            await eventually(lambda: len(control.heard) == 1, within_s=20)
            process.send_signal(signal.SIGSTOP)
            await eventually(lambda: not control.live, within_s=NOTICED_S)
            assert "nothing was heard from node" in control.links[0].ended_why
            process.send_signal(signal.SIGCONT)
            await eventually(lambda: len(control.heard) == 2, within_s=20)
            assert len(server.links) == 1
            assert control.most_per_node == 1
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(10)


def _python(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, *arguments], env=environment())
