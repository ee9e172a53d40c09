"""Gateways follow a publisher: a whole snapshot, changes, usage that is acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import assert_never

import pytest

from llmgw.core.ids import LinkId
from llmgw.core.traffic.snapshot import Change, Snapshot, change, changed
from llmgw.runtime.threads import ThreadPool
from llmgw.testing.waiting import eventually
from llmgw.wire.dialing import DialOptions
from llmgw.wire.errors import LinkLostError, LinkRefusedError
from llmgw.wire.gateway_link import GatewayLink, GatewayServer, PublisherLink, follow_control
from llmgw.wire.messages import (
    BATCH_RECORDS_MAX,
    GatewayHello,
    Load,
    Refusal,
    UsageBatch,
    UsageStored,
    Welcome,
)
from tests.wire import values
from tests.wire.ends import CLOCK, DIAL, LISTEN, running


@dataclass
class Publisher:
    """Publishes one snapshot and stores what gateways used."""

    snapshot: Snapshot
    leads: bool = True
    hellos: list[GatewayHello] = field(default_factory=list)
    links: list[GatewayLink] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)

    def welcome(self, hello: GatewayHello) -> Welcome | Refusal:
        """Only a leader publishes."""
        self.hellos.append(hello)
        if not self.leads:
            return Refusal("this control plane does not lead", 2.0)
        return Welcome(LinkId(f"link{len(self.hellos)}"), 3, "store", 0.1, 2.0)

    async def on_link(self, link: GatewayLink) -> None:
        """Publish, then listen."""
        self.links.append(link)
        await link.send(self.snapshot)
        async for message in link:
            match message:
                case Load():
                    self.loads.append(message)
                case UsageBatch(batch, records):
                    self.stored.update(record.request for record in records)
                    await link.send(UsageStored(batch))
                case _:
                    assert_never(message)

    async def publish(self, snapshot: Snapshot) -> None:
        """Send every gateway what has changed."""
        news = change(self.snapshot, snapshot)
        self.snapshot = snapshot
        for link in self.links:
            if not link.ended_why:
                await link.send(news)


@asynccontextmanager
async def publishing(publisher: Publisher) -> AsyncIterator[GatewayServer]:
    """Let gateways follow while the block runs."""
    server = GatewayServer(["127.0.0.1:0"], publisher.on_link, publisher.welcome, CLOCK, LISTEN)
    async with running(server):
        await asyncio.wait_for(server.listening.wait(), 5.0)
        yield server


def _follow(
    server: GatewayServer, gateway: str = "g1", dial: DialOptions = DIAL
) -> AbstractAsyncContextManager[PublisherLink]:
    hello = GatewayHello(gateway, 1, 7)
    return follow_control(f"127.0.0.1:{server.ports[0]}", hello, dial, CLOCK)


async def _next(link: PublisherLink) -> object:
    return await asyncio.wait_for(link.receive(), 20.0)


async def test_a_gateway_gets_the_whole_snapshot_and_then_changes() -> None:
    publisher = Publisher(values.snapshot(3))
    async with publishing(publisher) as server, _follow(server) as link:
        mine = await _next(link)
        assert mine == values.snapshot(3)
        assert isinstance(mine, Snapshot)
        await publisher.publish(values.snapshot(5, revision=2))
        news = await _next(link)
        assert isinstance(news, Change)
        assert changed(mine, news) == values.snapshot(5, revision=2)
    assert publisher.hellos == [GatewayHello("g1", 1, 7)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "threads", [None, ThreadPool("test", threads_max=1)], ids=["loop", "thread"]
)
async def test_a_snapshot_of_10_000_routes_arrives_on_one_link(threads: ThreadPool | None) -> None:
    large = values.snapshot(10_000)
    publisher = Publisher(large)
    dial = replace(DIAL, threads=threads)
    async with publishing(publisher) as server, _follow(server, dial=dial) as link:
        assert await _next(link) == large
        await publisher.publish(values.snapshot(20_000, revision=2))
        news = await _next(link)
        assert isinstance(news, Change)
        assert len(news.routes) == 10_000
        assert len(publisher.links) == 1
        assert not link.ended_why
    if threads is not None:
        await threads.close()


async def test_usage_is_acknowledged_batch_by_batch() -> None:
    publisher = Publisher(values.snapshot(1))
    records = tuple(values.usage(i) for i in range(BATCH_RECORDS_MAX))
    async with publishing(publisher) as server, _follow(server) as link:
        await _next(link)
        await link.send(UsageBatch(1, records))
        await link.send(UsageBatch(2, (values.usage(BATCH_RECORDS_MAX),)))
        assert await _next(link) == UsageStored(1)
        assert await _next(link) == UsageStored(2)
    assert publisher.stored == {f"q{i}" for i in range(BATCH_RECORDS_MAX + 1)}


async def test_load_goes_up() -> None:
    publisher = Publisher(values.snapshot(1))
    async with publishing(publisher) as server, _follow(server) as link:
        await link.send(Load(1, 1, {"r0": 4}))
        await eventually(lambda: publisher.loads == [Load(1, 1, {"r0": 4})])


async def test_a_control_plane_that_does_not_lead_says_when_to_come_back() -> None:
    publisher = Publisher(values.snapshot(1), leads=False)
    async with publishing(publisher) as server:
        with pytest.raises(LinkRefusedError, match="does not lead") as caught:
            async with _follow(server):
                pass
    assert caught.value.retry_after_s == 2.0


async def test_a_gateway_that_follows_again_replaces_its_old_link() -> None:
    publisher = Publisher(values.snapshot(1))
    async with publishing(publisher) as server, _follow(server) as old, _follow(server, "g2"):
        await _next(old)
        async with _follow(server) as new:
            assert await _next(new) == values.snapshot(1)
            with pytest.raises(LinkLostError, match="gateway g1 attached again"):
                await _next(old)
            assert len(server.links) == 2
