"""Both ends of the streams on real sockets, with deadlines that are quick enough for tests."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio

from llmgw.core.ids import LinkId, NodeId
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.tasks import OwnedTasks, Service
from llmgw.testing.waiting import eventually
from llmgw.wire.agent_link import AgentLink, AgentServer, ControlLink, dial_control
from llmgw.wire.dialing import DialOptions
from llmgw.wire.link import Limits
from llmgw.wire.messages import AgentUp, Hello, Refusal, Welcome
from llmgw.wire.pb import agent_pb2 as pb
from llmgw.wire.serving import ListenOptions

CLOCK: Final = SystemClock()
HEARTBEAT_S: Final = 0.1
SILENT_AFTER_S: Final = 1.0
"""Ten heartbeats: a machine under load may lose some."""
LIMITS: Final = Limits(hello_s_max=5.0, unread_s_max=1.0, untaken_s_max=1.0, farewell_s_max=0.3)
# Pings stay as slow as they are in use, so that it is the heartbeats which notice.
DIAL: Final = DialOptions(LIMITS)
LISTEN: Final = ListenOptions(LIMITS)


def hello(node: str = "n1", term: int = 0) -> Hello:
    """What an agent says first."""
    return Hello(NodeId(node), node, f"machine of {node}", "boot", "0.1.0", term)


@dataclass
class Control:
    """A control plane that takes all agents and writes down what it hears."""

    heartbeat_s: float = HEARTBEAT_S
    silent_after_s: float = SILENT_AFTER_S
    refusal: Refusal | None = None
    deaf: asyncio.Event | None = None
    """While this is there and not set, no link is read."""
    heard: list[tuple[LinkId, AgentUp]] = field(default_factory=list)
    links: list[AgentLink] = field(default_factory=list)
    """All that ever were."""
    using: list[LinkId] = field(default_factory=list)
    most_per_node: int = 0
    """How many live links one node had at the most."""
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def welcome(self, _: object) -> Welcome | Refusal:
        """Say yes, unless told otherwise."""
        if self.refusal is not None:
            return self.refusal
        link = LinkId(f"link{next(self.numbers)}")
        return Welcome(link, 3, "store", self.heartbeat_s, self.silent_after_s)

    async def on_link(self, link: AgentLink) -> None:
        """Listen until the link ends."""
        self.links.append(link)
        self.using.append(link.id)
        same = [o for o in self.live if o.peer.node == link.peer.node]
        self.most_per_node = max(self.most_per_node, len(same))
        try:
            if self.deaf is not None:
                await self.deaf.wait()
            async for message in link:
                self.heard.append((link.id, message))
        finally:
            self.using.remove(link.id)

    async def has_heard(self, count: int, within_s: float = 5.0) -> None:
        """Wait for so many messages."""
        await eventually(
            lambda: len(self.heard) >= count,
            within_s=within_s,
            saying=lambda: f"{len(self.heard)} messages of {count}",
        )

    @property
    def live(self) -> list[AgentLink]:
        """The links that have not ended."""
        return [link for link in self.links if not link.ended_why]

    def server(self, options: ListenOptions = LISTEN, port: int = 0) -> AgentServer:
        """Make a server for this control plane."""
        return AgentServer([f"127.0.0.1:{port}"], self.on_link, self.welcome, CLOCK, options)


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[None]:
    """Run a service while the block runs."""
    async with OwnedTasks("test", tasks_max=1) as tasks:
        task = tasks.start(service.run(), service.name)
        yield
        task.cancel()


@asynccontextmanager
async def serving(control: Control, options: ListenOptions = LISTEN) -> AsyncIterator[AgentServer]:
    """Let agents attach while the block runs."""
    server = control.server(options)
    async with running(server):
        await asyncio.wait_for(server.listening.wait(), 5.0)
        yield server


def attach(
    port: int, node: str = "n1", options: DialOptions = DIAL
) -> AbstractAsyncContextManager[ControlLink]:
    """Attach once."""
    return dial_control(f"127.0.0.1:{port}", hello(node), options, CLOCK)


class RawAgent:
    """An agent's end of a stream without a link: says what no link would say."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        self._call = call

    async def say(self, frame: bytes | pb.AgentMessage) -> None:
        """Send one frame."""
        await self._call.write(frame if isinstance(frame, bytes) else frame.SerializeToString())

    async def hear(self) -> pb.ControlMessage:
        """Wait for one frame."""
        frame = await asyncio.wait_for(self._call.read(), 10.0)
        assert isinstance(frame, bytes), "the stream has ended"
        message: pb.ControlMessage = pb.ControlMessage.FromString(frame)
        return message

    async def hear_end(self) -> str:
        """Wait for the frame that ends the link, and return its why."""
        while (message := await self.hear()).WhichOneof("what") != "end":
            pass
        return message.end.why


@asynccontextmanager
async def raw_agent(port: int, node: str | None) -> AsyncIterator[RawAgent]:
    """Open a stream, and say hello on it if there is a name."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = channel.stream_stream("/llmgw.v1.Agents/Attach")
        agent = RawAgent(method())
        if node is not None:
            await agent.say(pb.AgentMessage(hello=pb.Hello(node=node, name=node)))
            assert (await agent.hear()).welcome.link
        yield agent
