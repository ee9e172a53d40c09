"""Following a control plane: in memory, and over a real gRPC link."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from llmgw.core.ids import LinkId
from llmgw.core.traffic.snapshot import Change, Snapshot, change
from llmgw.core.traffic.usage import Usage
from llmgw.gateway.feed import FeedWithin, feed_from, hello_of
from llmgw.runtime.clock import Random, SystemClock
from llmgw.runtime.tasks import Service
from llmgw.testing.engine import Behaviour
from llmgw.testing.waiting import eventually
from llmgw.wire.dialing import DialOptions
from llmgw.wire.gateway_link import GatewayServer
from llmgw.wire.messages import (
    GatewayDown,
    GatewayHello,
    GatewayUp,
    Load,
    UsageBatch,
    UsageStored,
    Welcome,
)
from llmgw.wire.serving import ListenOptions
from tests.gateway.rig import Raw, Rig, chat, post, serving, snapshot


@dataclass
class Control:
    """A control plane's end: says what it is told to, keeps what it hears."""

    first: Snapshot
    stores: bool = True
    hellos: list[GatewayHello] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    batches: list[UsageBatch] = field(default_factory=list)
    stored: dict[str, Usage] = field(default_factory=dict)
    say: Callable[[GatewayDown], Awaitable[None]] | None = None
    end: Callable[[str], None] | None = None

    async def serve(self, link) -> None:  # type: ignore[no-untyped-def]  # either kind of link
        self.hellos.append(link.peer)
        self.say, self.end = link.send, link.end
        await link.send(self.first)
        async for message in link:
            await self._hear(link, message)

    async def _hear(self, link, message: GatewayUp) -> None:  # type: ignore[no-untyped-def]
        if isinstance(message, Load):
            self.loads.append(message)
            return
        self.batches.append(message)
        if self.stores:
            self.stored.update({usage.request: usage for usage in message.records})
            await link.send(UsageStored(message.batch))

    async def send(self, message: GatewayDown) -> None:
        assert self.say is not None
        await self.say(message)


@asynccontextmanager
async def run(service: Service) -> AsyncIterator[None]:
    """Run a service for the block."""
    task = asyncio.create_task(service.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def followed(
    tmp_path: Path, behaviour: Behaviour | None = None, *, stores: bool = True
) -> AsyncIterator[tuple[Rig, Control]]:
    """A gateway that follows a control plane in the same process."""
    async with serving(tmp_path, behaviour) as rig:
        control = Control(snapshot(rig.engine, revision=5), stores)
        feed = FeedWithin(rig.gateway, control.serve, SystemClock(), Random(1))
        async with run(feed):
            await eventually(lambda: rig.gateway.snapshot.revision >= 5)
            yield rig, control


async def test_snapshots_and_changes_are_obeyed(tmp_path: Path) -> None:
    async with followed(tmp_path) as (rig, control):
        assert control.hellos == [GatewayHello(rig.gateway.id, 1, 1)]
        after = replace(snapshot(rig.engine, revision=6), keys=())
        await control.send(change(control.first, after))
        await eventually(lambda: rig.gateway.snapshot == after)
        assert (await rig.ask(post(chat()))).status == 401
        await control.send(snapshot(rig.engine, revision=7))
        await eventually(lambda: rig.gateway.snapshot.revision == 7)


async def test_a_change_that_does_not_fit_ends_the_link_for_a_fresh_one(tmp_path: Path) -> None:
    async with followed(tmp_path) as (rig, control):
        control.first = snapshot(rig.engine, revision=9)
        await control.send(Change(1, base=77, revision=78))
        await eventually(lambda: len(control.hellos) == 2)
        assert control.hellos[1].revision == 5
        await eventually(lambda: rig.gateway.snapshot.revision == 9)


async def test_what_is_in_flight_is_told_when_it_changes_and_now_and_then(tmp_path: Path) -> None:
    async with followed(tmp_path, Behaviour(first_token_s=600)) as (rig, control):
        await eventually(lambda: Load(1, 5, {"r1": 0}) in control.loads)
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat()))
            await eventually(lambda: control.loads[-1] == Load(1, 5, {"r1": 1}))
            count = len(control.loads)
            await eventually(lambda: len(control.loads) >= count + 2)
        await eventually(lambda: control.loads[-1] == Load(1, 5, {"r1": 0}))


async def test_usage_is_sent_until_it_is_stored_and_then_forgotten(tmp_path: Path) -> None:
    async with followed(tmp_path) as (rig, control):
        for _ in range(3):
            await rig.ask(post(chat()))
        await eventually(lambda: len(control.stored) == 3)
        await rig.ask(post(chat()))  # its batch shows that the one before was acknowledged
        await eventually(lambda: len(control.stored) == 4)
        sent = [usage.request for batch in control.batches for usage in batch.records]
        assert sorted(sent) == sorted(control.stored)


async def test_usage_that_was_not_stored_comes_again_on_the_next_link(tmp_path: Path) -> None:
    async with followed(tmp_path, stores=False) as (rig, control):
        await rig.ask(post(chat()))
        await eventually(lambda: len(control.batches) == 1)
        control.stores = True
        assert control.end is not None
        control.end("for the test")
        await eventually(lambda: len(control.stored) == 1)
        assert control.batches[0].records == control.batches[1].records


@pytest.mark.parametrize("ledger", [True, False])
async def test_a_gateway_follows_over_a_real_link(tmp_path: Path, ledger: bool) -> None:
    async with serving(tmp_path) as rig:
        control = Control(snapshot(rig.engine, revision=5))
        server = GatewayServer(
            ["127.0.0.1:0"],
            control.serve,
            lambda _: Welcome(LinkId("link"), 1, "store", 1.0, 5.0, ledger=ledger),
            SystemClock(),
            ListenOptions(),
        )
        async with run(server):
            await server.listening.wait()
            endpoint = f"127.0.0.1:{server.ports[0]}"
            feed = feed_from(endpoint, rig.gateway, DialOptions(), SystemClock(), Random(1))
            async with run(feed):
                await eventually(lambda: rig.gateway.snapshot.revision == 5)
                await rig.ask(post(chat()))
                await eventually(lambda: len(control.stored) == 1)
                await eventually(lambda: bool(control.loads))
    assert rig.gateway.journal.acknowledged is ledger
    assert hello_of(rig.gateway) == GatewayHello(rig.gateway.id, 1, 5)
