"""Follows a control plane: snapshots down, load and usage up; over gRPC or inside one process.

Of the gateway, this module alone knows the wire.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from llmgw.core.errors import StorageError
from llmgw.core.ids import ID_BYTES, LinkId, id_from
from llmgw.core.traffic.snapshot import Change, Snapshot
from llmgw.gateway.gateway import Gateway
from llmgw.runtime.clock import Clock, Random
from llmgw.wire.dialing import DialOptions, KeepDialing
from llmgw.wire.errors import LinkLostError
from llmgw.wire.gateway_link import PublisherLink, follow_control
from llmgw.wire.mailbox import Mailbox, MailboxClosedError
from llmgw.wire.messages import (
    BATCH_RECORDS_MAX,
    GatewayDown,
    GatewayHello,
    GatewayUp,
    Load,
    UsageBatch,
    UsageStored,
)

logger = logging.getLogger(__name__)

LOAD_S_MIN: Final = 0.25
"""Between two reports of what is in flight, when it changes."""
LOAD_S_MAX: Final = 1.0
"""And when it does not."""
GATHER_S: Final = 0.25
"""For usage records to become a batch."""
RESEND_S: Final = 60.0
"""After which a batch that was not acknowledged is sent again; the store counts it once."""
MESSAGES_MAX: Final = 64
AGAIN_S: Final = 1.0

Peer = TypeVar("Peer")
Out = TypeVar("Out")
In = TypeVar("In")
M = TypeVar("M")


class Link(Protocol):
    """What following needs of a link; it ends when its messages do."""

    async def send(self, message: GatewayUp) -> None:
        """Send; raise LinkLostError where the link has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[GatewayDown]:
        """Receive until the end."""
        ...

    def end(self, why: str) -> None:
        """End it."""
        ...


def hello_of(gateway: Gateway) -> GatewayHello:
    """Return what the gateway says first on a link."""
    return GatewayHello(gateway.id, *gateway.snapshot.order)


async def follow(link: Link, gateway: Gateway, clock: Clock) -> None:
    """Obey, report and account over one link, until it ends."""
    stored: Mailbox[int] = Mailbox(MESSAGES_MAX)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_obey(link, gateway, stored), name="feed obeys"),
                group.create_task(_report(link, gateway, clock), name="feed reports"),
                group.create_task(_account(link, gateway, stored, clock), name="feed accounts"),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except* LinkLostError:
        pass  # the link says why


async def _obey(link: Link, gateway: Gateway, stored: Mailbox[int]) -> None:
    async for message in link:
        match message:
            case Snapshot():
                gateway.obey(message)
            case Change() if not gateway.obey_change(message):
                link.end(f"the change to revision {message.revision} is for another snapshot")
            case Change():
                pass
            case UsageStored(batch):
                await stored.put(batch)


async def _report(link: Link, gateway: Gateway, clock: Clock) -> None:
    last, sent_s = None, 0.0
    while True:
        load = Load(*gateway.snapshot.order, dict(gateway.load()))
        now_s = clock.monotonic_s()
        if load != last or now_s - sent_s >= LOAD_S_MAX:
            await link.send(load)
            last, sent_s = load, now_s
        await clock.sleep(LOAD_S_MIN)


async def _account(link: Link, gateway: Gateway, stored: Mailbox[int], clock: Clock) -> None:
    batch, failing = 0, False
    while True:
        try:
            records, place = await gateway.journal.unacknowledged()
        except StorageError as error:
            if not failing:
                logger.warning("usage waits in the journal: %s", error)
            failing = True
            await clock.sleep(AGAIN_S)
            continue
        failing = False
        if not records:
            await gateway.journal.news.wait()
            await clock.sleep(GATHER_S)
            continue
        for begin in range(0, len(records), BATCH_RECORDS_MAX):
            batch += 1
            part = UsageBatch(batch, records[begin : begin + BATCH_RECORDS_MAX])
            await _until_stored(link, part, stored)
        await gateway.journal.acknowledge(place)


async def _until_stored(link: Link, batch: UsageBatch, stored: Mailbox[int]) -> None:
    while True:
        await link.send(batch)
        try:
            async with asyncio.timeout(RESEND_S):
                while await stored.get() != batch.batch:
                    pass  # an earlier one that was sent twice
                return
        except TimeoutError:
            continue


def feed_from(
    endpoint: str, gateway: Gateway, options: DialOptions, clock: Clock, random: Random
) -> KeepDialing[GatewayUp, GatewayDown]:
    """Return the service that follows the control plane at `endpoint`."""
    return KeepDialing(
        f"feed from {endpoint}",
        lambda: follow_control(endpoint, hello_of(gateway), options, clock),
        lambda link: _follow_over(link, gateway, clock),
        clock,
        random,
    )


async def _follow_over(link: PublisherLink, gateway: Gateway, clock: Clock) -> None:
    gateway.journal.acknowledged = link.peer.ledger
    await follow(link, gateway, clock)


class MemoryLink(Generic[Peer, Out, In]):
    """One end of a link inside one process; both ends share its fate."""

    def __init__(
        self, id_: LinkId, peer: Peer, out: Mailbox[Out], into: Mailbox[In], fate: "_Fate"
    ) -> None:
        self.id = id_
        self.peer = peer
        self._out = out
        self._in = into
        self._fate = fate

    @property
    def ended_why(self) -> str:
        """Empty while the link lives."""
        return self._fate.why

    async def send(self, message: Out) -> None:
        """See Link."""
        try:
            await self._out.put(message)
        except MailboxClosedError:
            raise LinkLostError(self.ended_why) from None

    async def __aiter__(self) -> AsyncIterator[In]:
        """See Link."""
        while True:
            try:
                message = await self._in.get()
            except MailboxClosedError:
                return
            yield message

    def end(self, why: str) -> None:
        """See Link."""
        self._fate.why = self._fate.why or why
        self._out.close()
        self._in.close()


@dataclass(slots=True)
class _Fate:
    why: str = ""


ControlEnd = MemoryLink[GatewayHello, GatewayDown, GatewayUp]
GatewayEnd = MemoryLink[None, GatewayUp, GatewayDown]


def memory_link(id_: LinkId, hello: GatewayHello) -> tuple[GatewayEnd, ControlEnd]:
    """Return both ends of a link between a gateway and the control plane in the same process."""
    up: Mailbox[GatewayUp] = Mailbox(MESSAGES_MAX)
    down: Mailbox[GatewayDown] = Mailbox(MESSAGES_MAX)
    fate = _Fate()
    return MemoryLink(id_, None, up, down, fate), MemoryLink(id_, hello, down, up, fate)


@dataclass(slots=True)
class FeedWithin:
    """The service that follows the control plane in the same process.

    `serve` is the control plane's end: what it does with a gateway's link (Publisher.on_gateway).
    """

    gateway: Gateway
    serve: Callable[[ControlEnd], Awaitable[None]]
    clock: Clock
    random: Random
    name: str = field(default="feed within", init=False)

    async def run(self) -> None:
        """Keep one link, until cancelled."""
        while True:
            id_ = LinkId(id_from(self.random.randbytes(ID_BYTES)))
            ours, theirs = memory_link(id_, hello_of(self.gateway))
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(follow(ours, self.gateway, self.clock)),
                    group.create_task(_serve(self.serve, theirs)),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                ours.end("the other end has ended")
            await self.clock.sleep(AGAIN_S)


async def _serve(serve: Callable[[ControlEnd], Awaitable[None]], link: ControlEnd) -> None:
    await serve(link)
