"""Streams without a network, for what needs a clock that the test moves."""

import asyncio

from llmgw.core.ids import LinkId
from llmgw.runtime.clock import Clock
from llmgw.wire import agent_codec
from llmgw.wire.agent_link import ControlLink
from llmgw.wire.link import LIMITS, Ends, Limits, Link, StreamEndedError
from llmgw.wire.messages import Welcome

WELCOME = Welcome(LinkId("link1"), 1, "store", heartbeat_s=1.0, silent_after_s=5.0)


class SilentStream:
    """Takes everything that is written, unless stuck, and says only what the test lets it say."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.stuck = asyncio.Event()
        self.stuck.set()
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()

    def say(self, frame: bytes | None) -> None:
        """Let the other end say a frame; None closes the stream."""
        self._said.put_nowait(frame)

    async def read(self) -> bytes:
        """See Stream."""
        frame = await self._said.get()
        if frame is None:
            raise StreamEndedError("the other end closed the stream")
        return frame

    async def write(self, frame: bytes) -> None:
        """See Stream."""
        await self.stuck.wait()
        self.written.append(frame)

    async def finish(self) -> None:
        """See Stream; the other end closes its side in turn."""
        self.say(None)


def link_over(stream: SilentStream, clock: Clock, limits: Limits = LIMITS) -> ControlLink:
    """Make an agent's link over a stream that has been introduced."""
    ends = Ends("control plane", agent_codec.UP, agent_codec.DOWN, limits)
    return Link(WELCOME, WELCOME, stream, ends, clock)
