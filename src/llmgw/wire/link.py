"""One life of a stream between two daemons: typed messages, heartbeats, deadlines and an end.

The same class is used at both ends. Three tasks carry it: one reads, one writes, one watches the
clock. Whatever goes wrong ends the link with a sentence; nothing of it is ever raised in another
place than `send` and `receive`, and what an ended link still holds is dropped.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

from llmgw.runtime.clock import Clock
from llmgw.runtime.tasks import OwnedTasks
from llmgw.runtime.threads import ThreadPool
from llmgw.wire.codec import Codec
from llmgw.wire.errors import LinkLostError, MalformedError, UnsendableError
from llmgw.wire.frames import PIECE_BYTES, End, Framing, Heartbeat, Joiner, Piece, pieces
from llmgw.wire.mailbox import Mailbox, MailboxClosedError
from llmgw.wire.messages import GatewayHello, Handshake, Hello, Refusal, Welcome

logger = logging.getLogger(__name__)

OUT_FRAMES_MAX: Final = 64
"""Frames that wait to be written: 16 MB at most."""
IN_MESSAGES_MAX: Final = 64
"""Messages that wait to be received."""
WHY_CHARS_MAX: Final = 1_000
"""Of the sentence with which a link ends."""

Peer = TypeVar("Peer")
Out = TypeVar("Out")
In = TypeVar("In")


class StreamEndedError(Exception):
    """A gRPC stream carries nothing more; the message says why, as far as gRPC knows."""


class Stream(Protocol):
    """What a link needs of a gRPC stream; the client's and the server's differ."""

    async def read(self) -> bytes:
        """Return the next frame; raise StreamEndedError."""
        ...

    async def write(self, frame: bytes) -> None:
        """Return when the frame is on its way; raise StreamEndedError."""
        ...

    async def finish(self) -> None:
        """Say that nothing more comes from this end."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the two ends wait for each other, besides the heartbeats that a Welcome names."""

    hello_s_max: float = 10.0
    """From dialing to the answer to the first message."""
    unread_s_max: float = 20.0
    """How long the other end may read nothing while something is to be written."""
    untaken_s_max: float = 60.0
    """How long this end may leave messages unreceived before the link counts as stuck."""
    farewell_s_max: float = 1.0
    """For the last message and the other end's good-bye."""
    outlive_s_max: float = 30.0
    """How long what a server uses a link for may go on after the link's end."""


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Ends(Generic[Out, In]):
    """How an end writes, reads, and what it calls the other."""

    other: str
    """For sentences: `node gpu-7`, `control plane at 10.0.0.1:7200`."""
    out: Codec[Out]
    into: Codec[In]
    limits: Limits
    threads: ThreadPool | None = None
    """Where messages that came in pieces are decoded; None: in the event loop."""


class Link(Generic[Peer, Out, In]):
    """Send and receive messages until it ends; then dial, or be dialed, anew."""

    def __init__(
        self, peer: Peer, welcome: Welcome, stream: Stream, ends: Ends[Out, In], clock: Clock
    ) -> None:
        self.id: Final = welcome.link
        self.peer: Final = peer
        """What the other end said first: a hello at the server, a Welcome at the client."""
        self.ended_why = ""
        """Empty while the link lives."""
        self.on_end: Callable[[], None] | None = None
        """Called once, when the link ends."""
        self._welcome = welcome
        self._stream = stream
        self._ends = ends
        self._clock = clock
        self._outbox: Mailbox[bytes] = Mailbox(OUT_FRAMES_MAX)
        self._inbox: Mailbox[In] = Mailbox(IN_MESSAGES_MAX)
        self._sending = asyncio.Lock()
        self._joiner = Joiner(ends.into.bytes_max)
        self._ended = asyncio.Event()
        self._farewell: str | None = None
        self._carried = asyncio.Event()
        self._heard_s = self._sent_s = clock.monotonic_s()
        self._writing_since_s: float | None = None
        self._untaken_since_s: float | None = None
        self._puzzled = False

    async def send(self, message: Out) -> None:
        """Queue a message, waiting for room; larger ones are cut, split or sent in pieces.

        Raises LinkLostError where the link has ended, UnsendableError (the link then lives on) for
        a message that cannot be carried.
        """
        encoded = [self._encoded(part) for part in self._ends.out.fitted(message)]
        async with self._sending:  # the pieces of a message stay together
            for data in encoded:
                await self._queue(data)

    async def receive(self) -> In:
        """Return the next message; raise LinkLostError when the link has ended."""
        try:
            return await self._inbox.get()
        except MailboxClosedError:
            raise LinkLostError(self.ended_why) from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> In:
        try:
            return await self._inbox.get()
        except MailboxClosedError:
            raise StopAsyncIteration from None

    def end(self, why: str) -> None:
        """End the link now and tell the other end, if it listens; the first why stays."""
        self._end(why, farewell=why)

    async def close(self, why: str) -> None:
        """End the link and wait, for a short while, until it is gone."""
        self.end(why)
        await self.wait_gone(2 * self.farewell_s_max)

    async def wait_gone(self, s_max: float) -> None:
        """Return when nothing carries this link any more, or after `s_max`."""
        try:
            async with asyncio.timeout(s_max):
                await self._carried.wait()
        except TimeoutError:
            logger.warning("link %s with %s is not gone after %s s", self.id, self._other, s_max)

    @property
    def farewell_s_max(self) -> float:
        """How long the last messages may take."""
        return self._ends.limits.farewell_s_max

    @property
    def _other(self) -> str:
        return self._ends.other

    def _end(self, why: str, farewell: str | None) -> None:
        if self.ended_why:
            return
        self.ended_why = why[:WHY_CHARS_MAX] or "the link was ended"
        self._farewell = farewell[:WHY_CHARS_MAX] if farewell is not None else None
        self._ended.set()
        self._outbox.close()
        self._inbox.close()
        if self.on_end is not None:
            self.on_end()

    def _encoded(self, message: Out) -> bytes:
        data = self._ends.out.encode(message)
        if len(data) > self._ends.out.bytes_max:
            raise UnsendableError(
                f"{type(message).__name__} has {len(data)} bytes; a link carries "
                f"{self._ends.out.bytes_max} at most"
            )
        return data

    async def _queue(self, data: bytes) -> None:
        try:
            if len(data) <= PIECE_BYTES:
                await self._outbox.put(data)
                return
            for piece in pieces(data):
                await self._outbox.put(self._ends.out.encode(piece))
        except MailboxClosedError:
            raise LinkLostError(self.ended_why) from None

    # What follows runs in the link's own tasks.

    async def carry(self) -> None:
        """Do the work of the link until it ends."""
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(), name=f"link {self.id} writes")
                reader = group.create_task(self._read(), name=f"link {self.id} reads")
                watcher = group.create_task(self._watch(), name=f"link {self.id} watches")
                await self._ended.wait()
                # First the good-bye of both ends: to cancel a read cancels the client's stream.
                await asyncio.wait([writer, reader], timeout=self.farewell_s_max)
                for task in (writer, reader, watcher):
                    task.cancel()
        finally:
            self._end("it failed or was stopped; the log says more", farewell=None)
            self._carried.set()

    async def _write(self) -> None:
        try:
            while True:
                frame = await self._outbox.get()
                self._writing_since_s = self._clock.monotonic_s()
                await self._stream.write(frame)
                self._writing_since_s = None
                self._sent_s = self._clock.monotonic_s()
        except MailboxClosedError:
            await self._say_farewell()
        except StreamEndedError as error:
            self._end(f"the link to {self._other} was lost: {error}", farewell=None)

    async def _say_farewell(self) -> None:
        try:
            if self._farewell is not None:
                await self._stream.write(self._ends.out.encode(End(self._farewell)))
            await self._stream.finish()
        except StreamEndedError:
            pass  # the other end sees the stream end, which is as good

    async def _read(self) -> None:
        while True:
            try:
                frame = await self._stream.read()
            except StreamEndedError as error:
                self._end(f"the link to {self._other} was lost: {error}", farewell=None)
                return
            if self.ended_why:
                continue  # what an ended link says is ignored, but for the end of the stream
            self._heard_s = self._clock.monotonic_s()
            try:
                message = await self._understood(frame)
            except MalformedError as error:
                self.end(f"a message of {self._other} is malformed: {error}")
                continue
            if message is not None:
                await self._deliver(message)

    async def _deliver(self, message: In) -> None:
        self._untaken_since_s = self._clock.monotonic_s()
        try:
            await self._inbox.put(message)
        except MailboxClosedError:
            return
        self._untaken_since_s = None
        self._heard_s = self._clock.monotonic_s()

    async def _understood(self, frame: bytes) -> In | None:
        message = self._ends.into.decode(frame)
        if isinstance(message, Piece):
            whole = self._joiner.add(message)
            return None if whole is None else self._news(await self._decoded_apart(whole))
        return self._news(message)

    async def _decoded_apart(self, data: bytes) -> In | Handshake | Framing | None:
        if self._ends.threads is None:
            return self._ends.into.decode(data)
        return await self._ends.threads.run(self._ends.into.decode, data)

    def _news(self, message: In | Handshake | Framing | None) -> In | None:
        if isinstance(message, Hello | GatewayHello | Welcome | Refusal):
            raise MalformedError(f"{type(message).__name__} came again")
        if isinstance(message, End):
            self._end(f"{self._other} ended the link: {message.why}", farewell=None)
            return None
        if isinstance(message, Piece):
            raise MalformedError("piece: holds pieces")
        if isinstance(message, Heartbeat):
            return None
        if message is None and not self._puzzled:
            self._puzzled = True
            logger.warning(
                "%s says something that this version of llmgw does not know; it is ignored",
                self._other,
            )
        return message

    async def _watch(self) -> None:
        tick_s = min(self._welcome.heartbeat_s, self._welcome.silent_after_s) / 4
        while True:
            before_s = self._clock.monotonic_s()
            await self._clock.sleep(tick_s)
            now_s = self._clock.monotonic_s()
            if self.ended_why:
                return
            if now_s - before_s > tick_s + self._welcome.heartbeat_s:
                # This process itself stood still: what was sent meanwhile is yet to be read.
                continue
            if why := self._overdue(now_s):
                self.end(why)
            elif now_s - self._sent_s >= self._welcome.heartbeat_s and not self._outbox:
                await self._queue(self._ends.out.encode(Heartbeat()))

    def _overdue(self, now_s: float) -> str:
        limits = self._ends.limits
        if _longer(now_s, self._untaken_since_s, limits.untaken_s_max):
            return f"messages of {self._other} lay unread for {limits.untaken_s_max:g} s"
        if _longer(now_s, self._writing_since_s, limits.unread_s_max):
            return f"{self._other} read nothing for {limits.unread_s_max:g} s"
        silent_s = self._welcome.silent_after_s
        if self._untaken_since_s is None and _longer(now_s, self._heard_s, silent_s):
            return f"nothing was heard from {self._other} for {silent_s:g} s"
        return ""


def _longer(now_s: float, since_s: float | None, limit_s: float) -> bool:
    return since_s is not None and now_s - since_s > limit_s


@asynccontextmanager
async def carried(link: Link[Peer, Out, In]) -> AsyncIterator[Link[Peer, Out, In]]:
    """Carry a link while the block runs; at its end the link ends."""
    why = "it stops or has failed; its log says more"
    async with OwnedTasks(f"link {link.id}", tasks_max=1) as tasks:
        carrier = tasks.start(link.carry(), f"link {link.id}")
        try:
            yield link
            why = "it needs the link no longer"
        finally:
            link.end(why)
            await asyncio.wait([carrier], timeout=2 * link.farewell_s_max)
