"""Agents and gateways are awaited on one port."""

import asyncio
from pathlib import Path

from llmgw.testing.fleet import catalog, profile
from llmgw.wire.dialing import DialOptions
from llmgw.wire.gateway_link import follow_control
from llmgw.wire.messages import GatewayHello
from tests.control.planes import CLOCK, Nodes, on_sqlite


async def test_agents_and_gateways_attach_on_the_same_port(tmp_path: Path, nodes: Nodes) -> None:
    async with on_sqlite(tmp_path) as plane:
        assert plane.gateways == plane.endpoint
        agent = nodes.start(plane.endpoint)
        await plane.apply(catalog(profile()))
        hello = GatewayHello("g1", 0, 0)
        async with follow_control(plane.gateways, hello, DialOptions(), CLOCK) as link:
            async with asyncio.timeout(5):
                snapshot = await link.receive()
            assert type(snapshot).__name__ == "Snapshot"
            await plane.until(lambda: agent.attached == 1)
