"""The client's end of links: one dial, and the loop that dials again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import grpc
import grpc.aio

from llmgw.runtime.backoff import Backoff
from llmgw.runtime.clock import Clock, Random
from llmgw.runtime.tasks import OwnedTasks
from llmgw.runtime.threads import ThreadPool
from llmgw.wire.codec import Codec
from llmgw.wire.errors import (
    LinkLostError,
    LinkRefusedError,
    MalformedError,
    UnsendableError,
)
from llmgw.wire.link import LIMITS, Ends, Limits, Link, Stream, StreamEndedError, carried
from llmgw.wire.messages import GatewayHello, Hello, Refusal, Welcome
from llmgw.wire.transport import KEEPALIVE, ClientStream, Keepalive, client_options

logger = logging.getLogger(__name__)

RETRY_AFTER_S_MAX: Final = 300.0
"""A refusal may ask for more, and gets this."""

Out = TypeVar("Out")
In = TypeVar("In")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast to dial again: for a control plane that restarts, and that 200 nodes wait for."""

    backoff: Backoff
    lived_s: float
    """A link that lives so long ends the back-off."""


PACE: Final = Pace(Backoff(first_s=0.5, cap_s=15.0), lived_s=30.0)


@dataclass(frozen=True, slots=True)
class DialOptions:
    """How to dial."""

    limits: Limits = LIMITS
    keepalive: Keepalive = KEEPALIVE
    credentials: grpc.ChannelCredentials | None = None
    """None: no TLS."""
    threads: ThreadPool | None = None
    """For large messages, where the event loop has better to do than to decode them."""


@dataclass(frozen=True, slots=True)
class Service(Generic[Out, In]):
    """A stream as its client sees it."""

    method: str
    out: Codec[Out]
    into: Codec[In]


@asynccontextmanager
async def dial(
    service: Service[Out, In],
    endpoint: str,
    hello: Hello | GatewayHello,
    options: DialOptions,
    clock: Clock,
) -> AsyncIterator[Link[Welcome, Out, In]]:
    """Make one link and carry it while the block runs; raise LinkLostError or LinkRefusedError."""
    name = f"control plane at {endpoint}"
    ends = Ends(name, service.out, service.into, options.limits, options.threads)
    channel = _channel(endpoint, options)
    try:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = channel.stream_stream(service.method)
        stream = ClientStream(method(wait_for_ready=False))
        welcome = await _introduced(stream, hello, ends)
        async with carried(Link(welcome, welcome, stream, ends, clock)) as link:
            yield link
    finally:
        await channel.close()


def _channel(endpoint: str, options: DialOptions) -> grpc.aio.Channel:
    arguments = client_options(options.keepalive)
    if options.credentials is None:
        return grpc.aio.insecure_channel(endpoint, arguments)
    return grpc.aio.secure_channel(endpoint, options.credentials, arguments)


async def _introduced(stream: Stream, hello: Hello | GatewayHello, ends: Ends[Out, In]) -> Welcome:
    try:
        async with asyncio.timeout(ends.limits.hello_s_max):
            await stream.write(ends.out.encode(hello))
            answer = ends.into.decode(await stream.read())
    except TimeoutError:
        raise LinkLostError(
            f"{ends.other} did not answer within {ends.limits.hello_s_max:g} s"
        ) from None
    except StreamEndedError as error:
        raise LinkLostError(f"cannot reach {ends.other}: {error}") from error
    except MalformedError as error:
        raise LinkLostError(f"{ends.other} answered with something malformed: {error}") from error
    match answer:
        case Welcome():
            return answer
        case Refusal(why, retry_after_s):
            raise LinkRefusedError(f"{ends.other} refused: {why}", retry_after_s)
        case _:
            raise LinkLostError(f"{ends.other} answered with {type(answer).__name__}, not Welcome")


class KeepDialing(Generic[Out, In]):
    """A service that keeps one link to one control plane: never two, never a hot loop.

    The log says at once when it has joined first, then once when the link is away and once when it
    is there again for good.
    """

    def __init__(
        self,
        name: str,
        dial_once: Callable[[], AbstractAsyncContextManager[Link[Welcome, Out, In]]],
        on_link: Callable[[Link[Welcome, Out, In]], Awaitable[None]],
        clock: Clock,
        random: Random,
        pace: Pace = PACE,
    ) -> None:
        self.name = name
        self._dial_once = dial_once
        self._on_link = on_link
        self._clock = clock
        self._random = random
        self._pace = pace
        self._failures = 0
        self._has_joined = False
        self._said_away = False

    async def run(self) -> None:
        """Dial, let `on_link` use the link until it ends, wait, dial again."""
        while True:
            retry_after_s = 0.0
            try:
                why = await self._one_link()
            except LinkRefusedError as error:
                why, retry_after_s = str(error), min(error.retry_after_s, RETRY_AFTER_S_MAX)
            except (LinkLostError, UnsendableError) as error:
                why = str(error)
            self._failures += 1
            wait_s = max(self._pace.backoff.wait_s(self._failures, self._random), retry_after_s)
            log = logger.debug if self._said_away else logger.warning
            self._said_away = True
            log("%s: %s; dialing again in %.1f s and from then on", self.name, why, wait_s)
            await self._clock.sleep(wait_s)

    async def _one_link(self) -> str:
        async with OwnedTasks(self.name, tasks_max=1) as tasks, self._dial_once() as link:
            settling = tasks.start(self._settle(link), f"{self.name} settles")
            await self._on_link(link)
            settling.cancel()
            return link.ended_why or "this end closed the link"

    async def _settle(self, link: Link[Welcome, Out, In]) -> None:
        if not self._has_joined:
            self._has_joined, self._said_away = True, False
            logger.info("%s: joined, link %s", self.name, link.id)
        await self._clock.sleep(self._pace.lived_s)
        if link.ended_why:
            return
        self._failures = 0
        if self._said_away:
            self._said_away = False
            logger.info("%s: is there again, link %s", self.name, link.id)
