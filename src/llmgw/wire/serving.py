"""The server's end of links: listens, greets, and keeps one link per caller.

When a caller attaches again while its old link is open, the new one wins: an old one may be half
open, and only the caller knows. The old link ends before the new one begins.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio

from llmgw.runtime.clock import Clock
from llmgw.runtime.tasks import OwnedTasks
from llmgw.wire.codec import Codec
from llmgw.wire.errors import CannotListenError, LinkLostError, MalformedError
from llmgw.wire.link import LIMITS, Ends, Limits, Link, Stream, StreamEndedError, carried
from llmgw.wire.messages import Refusal, Welcome
from llmgw.wire.transport import KEEPALIVE, Keepalive, ServerStream, server_options

logger = logging.getLogger(__name__)

LINKS_MAX: Final = 1024
"""Of one server: five times as many as the largest fleet that llmgw is for."""
GREETING_MAX: Final = 64
"""Streams beside the links: those that are being greeted or refused."""
FULL_RETRY_S: Final = 30.0
PREDECESSOR_S_MAX: Final = 5.0
"""How long a new link waits until what used the old one has let go."""
STOP_S_MAX: Final = 5.0
"""How long a stopping server waits for its links' good-byes."""

Caller = TypeVar("Caller")
Out = TypeVar("Out")
In = TypeVar("In")


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """How to listen."""

    limits: Limits = LIMITS
    keepalive: Keepalive = KEEPALIVE
    credentials: grpc.ServerCredentials | None = None
    """None: no TLS."""
    links_max: int = LINKS_MAX
    setting: str = ""
    """What its operator changes where the address is taken; only told."""


@dataclass(frozen=True, slots=True)
class Served(Generic[Caller, Out, In]):
    """A stream as its server sees it."""

    service: str
    method: str
    caller: type[Caller]
    caller_key: Callable[[Caller], str]
    """What there is one link per."""
    caller_name: Callable[[Caller], str]
    """For sentences."""
    out: Codec[Out]
    into: Codec[In]


@dataclass(frozen=True, slots=True)
class _Open(Generic[Caller, Out, In]):
    link: Link[Caller, Out, In]
    task: asyncio.Task[None]


class LinkServer(Generic[Caller, Out, In]):
    """A service that listens for links and lets `on_link` use each until it ends.

    `welcome` says whether a caller is taken, and gives its link an id. `on_link` is not cancelled
    when its link is lost: `send` and `receive` raise, and it has `outlive_s_max` to return.
    """

    def __init__(
        self,
        served: Served[Caller, Out, In],
        addresses: Sequence[str],
        on_link: Callable[[Link[Caller, Out, In]], Awaitable[None]],
        welcome: Callable[[Caller], Welcome | Refusal],
        clock: Clock,
        options: ListenOptions,
    ) -> None:
        self.name = f"{served.service} server"
        self.ports: tuple[int, ...] = ()
        """What it listens on, in the order of its addresses, once `listening` is set."""
        self.listening = asyncio.Event()
        self._served = served
        self._addresses = tuple(addresses)
        self._on_link = on_link
        self._welcome = welcome
        self._clock = clock
        self._options = options
        self._open: dict[str, _Open[Caller, Out, In]] = {}
        self._stopping = False
        self._guests: list[LinkServer[Any, Any, Any]] = []
        self._tasks = OwnedTasks(
            self.name, tasks_max=options.links_max + GREETING_MAX, stop_s_max=STOP_S_MAX
        )

    @property
    def links(self) -> tuple[Link[Caller, Out, In], ...]:
        """The links that live now, one per caller."""
        return tuple(o.link for o in self._open.values() if not o.link.ended_why)

    def take_in(self, guest: "LinkServer[Any, Any, Any]") -> None:
        """Let another service listen here, too: one port for both. Then run this one alone."""
        self._guests.append(guest)

    async def run(self) -> None:
        """Listen until cancelled, then end all links in good order."""
        services = (self, *self._guests)
        server = self._server(services)
        try:
            await self._bind(server, services)
            async with contextlib.AsyncExitStack() as tasks:
                for service in services:
                    await tasks.enter_async_context(service._tasks)
                await server.start()
                logger.info("%s listens on %s, ports %s", self.name, self._addresses, self.ports)
                for service in services:
                    service.ports = self.ports
                    service.listening.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    for service in services:
                        service._stopping = True
                    for service in services:
                        await service._say_goodbye()
        finally:
            await server.stop(STOP_S_MAX)

    def _server(self, services: Sequence["LinkServer[Any, Any, Any]"]) -> grpc.aio.Server:
        return grpc.aio.server(
            handlers=[service._handler() for service in services],
            options=server_options(self._options.keepalive),
            maximum_concurrent_rpcs=sum(s._options.links_max + GREETING_MAX for s in services),
        )

    def _handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            self._served.method: grpc.stream_stream_rpc_method_handler(self._handle)
        }
        return grpc.method_handlers_generic_handler(self._served.service, methods)

    async def _bind(
        self, server: grpc.aio.Server, services: Sequence["LinkServer[Any, Any, Any]"]
    ) -> None:
        try:
            for address in self._addresses:
                await self._probe(address)
            self.ports = tuple(self._port(server, address) for address in self._addresses)
        except CannotListenError:
            for service in services:
                service._stopping = True
            await server.start()  # gRPC gives back only what a server holds that has run
            raise

    def _port(self, server: grpc.aio.Server, address: str) -> int:
        try:
            if self._options.credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, self._options.credentials)
        except RuntimeError as error:
            what = "it is taken or not an address of this machine"
            raise self._cannot_listen(address, what) from error

    async def _probe(self, address: str) -> None:
        """Find out before gRPC does, which would write lines of its own about it."""
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or port == "0":
            return
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            for family, kind, protocol, _, place in found[:1]:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(place)
        except OSError as error:
            raise self._cannot_listen(address, error.strerror or str(error)) from error

    def _cannot_listen(self, address: str, what: str) -> CannotListenError:
        setting = f" (`{self._options.setting}`)" if self._options.setting else ""
        return CannotListenError(
            f"{self.name} cannot listen on {address}: {what}; stop what listens there or choose "
            f"another{setting}"
        )

    async def _say_goodbye(self) -> None:
        self._stopping = True
        for link in self.links:
            link.end("it stops")
        if tasks := [o.task for o in self._open.values()]:
            await asyncio.wait(tasks, timeout=STOP_S_MAX)

    # One call of `_handle` per stream, in a task of gRPC's.

    async def _handle(
        self, _: AsyncIterable[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        stream = ServerStream(context)
        caller = await self._introduced(stream, context.peer())
        if caller is None:
            return
        answer = self._answer(caller)
        ends = Ends(
            self._served.caller_name(caller),
            self._served.out,
            self._served.into,
            self._options.limits,
        )
        if isinstance(answer, Refusal):
            logger.info("%s refused %s: %s", self.name, ends.other, answer.why)
            await self._say_first(stream, answer)
            return
        link = Link(caller, answer, stream, ends, self._clock)
        task = self._begin(link, answer, stream, self._served.caller_key(caller), ends.other)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # gRPC's word for a stream whose client is gone
            link.end("the connection was lost")
            raise

    def _begin(
        self, link: Link[Caller, Out, In], answer: Welcome, stream: Stream, key: str, name: str
    ) -> asyncio.Task[None]:
        # Without a pause: of two that attach at once, the one that was welcomed last is the one.
        old = self._open.get(key)
        if old is not None:
            old.link.end(f"{name} attached again, as link {link.id}; this one is old")
        work = self._serve(link, answer, stream, None if old is None else old.task)
        task = self._tasks.start(work, f"link {link.id}")
        entry = _Open(link, task)
        self._open[key] = entry
        task.add_done_callback(lambda _: self._forget(key, entry))
        logger.info("%s: %s attached, link %s", self.name, name, link.id)
        return task

    def _forget(self, key: str, entry: "_Open[Caller, Out, In]") -> None:
        if self._open.get(key) is entry:
            del self._open[key]
        link = entry.link
        link.end("it was stopped")
        logger.info("%s: link %s ended: %s", self.name, link.id, link.ended_why)

    async def _introduced(self, stream: Stream, address: str) -> Caller | None:
        limit_s = self._options.limits.hello_s_max
        try:
            async with asyncio.timeout(limit_s):
                hello = self._served.into.decode(await stream.read())
        except TimeoutError:
            why = f"no hello came within {limit_s:g} s"
        except StreamEndedError as error:
            logger.info("%s: a caller at %s went away: %s", self.name, address, error)
            return None
        except MalformedError as error:
            why = f"the hello is malformed: {error}"
        else:
            if isinstance(hello, self._served.caller):
                return hello
            why = f"the first message is {type(hello).__name__}, not {self._served.caller.__name__}"
        logger.warning("%s refused a caller at %s: %s", self.name, address, why)
        await self._say_first(stream, Refusal(why))
        return None

    def _answer(self, caller: Caller) -> Welcome | Refusal:
        if self._stopping:
            return Refusal("it stops")
        again = self._served.caller_key(caller) in self._open
        if len(self._tasks) >= self._options.links_max + (GREETING_MAX if again else 0):
            return Refusal(f"it has {len(self._tasks)} links, which is its limit", FULL_RETRY_S)
        return self._welcome(caller)

    async def _say_first(self, stream: Stream, answer: Welcome | Refusal) -> bool:
        try:
            async with asyncio.timeout(self._options.limits.hello_s_max):
                await stream.write(self._served.out.encode(answer))
        except (TimeoutError, StreamEndedError):
            return False
        return True

    async def _serve(
        self,
        link: Link[Caller, Out, In],
        answer: Welcome,
        stream: Stream,
        predecessor: asyncio.Task[None] | None,
    ) -> None:
        if predecessor is not None:
            await asyncio.wait([predecessor], timeout=PREDECESSOR_S_MAX)
        if link.ended_why or not await self._say_first(stream, answer):
            return
        try:
            async with carried(link):
                await self._use(link)
        except LinkLostError:
            pass  # said by the link itself

    async def _use(self, link: Link[Caller, Out, In]) -> None:
        loop, outlive_s = asyncio.get_running_loop(), self._options.limits.outlive_s_max
        limit = asyncio.timeout(None)
        try:
            async with limit:
                link.on_end = lambda: limit.reschedule(loop.time() + outlive_s)
                await self._on_link(link)
        except TimeoutError:
            if not limit.expired():
                raise
            logger.exception(
                "%s: what used link %s went on for %s s after its end and was cancelled",
                self.name,
                link.id,
                outlive_s,
            )
        finally:
            link.on_end = None
