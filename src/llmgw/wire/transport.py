"""gRPC as links use it: its options, and both kinds of its streams.

Every option is here with its reason. Streams carry bytes: the codecs read and write them, so that
a message which cannot be read is an error of ours, with the field's name, and not gRPC's.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from llmgw.wire.frames import FRAME_BYTES_MAX
from llmgw.wire.link import StreamEndedError

Options = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Keepalive:
    """HTTP/2 pings, with which each end's TCP notices that the other is gone.

    The heartbeats judge a link; the pings are there so that the connection below it is closed, too.
    """

    ping_s: float = 20.0
    """Each end pings when nothing was received for so long."""
    pong_s: float = 10.0
    """A ping that is not answered for so long closes the connection."""

    @property
    def floor_s(self) -> float:
        """Pings that come faster than this are too many; gRPC's own floor is 300 s.

        Half of what the other end does, so a delayed ping and a timely next one are no offence.
        """
        return self.ping_s / 2


KEEPALIVE: Final = Keepalive()


def client_options(keepalive: Keepalive) -> Options:
    """Return the options of a channel; one channel is one try."""
    return [
        *_common_options(keepalive),
        # Channels to one target share connections, and their back-off: a fresh dial would wait.
        ("grpc.use_local_subchannel_pool", 1),
        # A proxy from the environment is for the world, not for the machine room.
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]


def server_options(keepalive: Keepalive) -> Options:
    """Return the options of a server."""
    return [
        *_common_options(keepalive),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(keepalive.floor_s)),
        # Otherwise two control planes on one port both believe that they listen.
        ("grpc.so_reuseport", 0),
    ]


def _common_options(keepalive: Keepalive) -> Options:
    return [
        ("grpc.max_send_message_length", FRAME_BYTES_MAX),
        ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
        ("grpc.keepalive_time_ms", _ms(keepalive.ping_s)),
        ("grpc.keepalive_timeout_ms", _ms(keepalive.pong_s)),
        # The one that gRPC obeys for its pings (seen: it waited 60 s, whatever the one above said).
        ("grpc.http2.ping_timeout_ms", _ms(keepalive.pong_s)),
        # Pings go on while a stream is idle, and are not counted.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class ClientStream:
    """The client's end of a gRPC stream."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        self._call = call

    async def read(self) -> bytes:
        """See Stream."""
        try:
            frame = await self._call.read()
        except grpc.RpcError as error:
            raise StreamEndedError(sentence(error)) from error
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamEndedError("the stream is closed") from error
        if not isinstance(frame, bytes):
            raise StreamEndedError("the other end closed the stream")
        return frame

    async def write(self, frame: bytes) -> None:
        """See Stream."""
        try:
            await self._call.write(frame)
        except grpc.RpcError as error:
            raise StreamEndedError(sentence(error)) from error
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamEndedError("the stream is closed") from error

    async def finish(self) -> None:
        """See Stream."""
        try:
            await self._call.done_writing()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamEndedError("the stream is closed") from error


class ServerStream:
    """The server's end of a gRPC stream."""

    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        self._context = context

    async def read(self) -> bytes:
        """See Stream."""
        try:
            frame: object = await self._context.read()
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamEndedError("the connection was lost") from error
        if not isinstance(frame, bytes):
            raise StreamEndedError("the connection was closed")
        return frame

    async def write(self, frame: bytes) -> None:
        """See Stream."""
        try:
            await self._context.write(frame)
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise StreamEndedError("the connection was lost") from error

    async def finish(self) -> None:
        """Nothing to do: the stream ends when its handler returns."""


def sentence(error: grpc.RpcError) -> str:
    """Return what gRPC knows of a failure, in one line."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return str(error)
    details = " ".join((error.details() or "no details").split())
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "what listens there is no control plane of this version"
    return f"{details} ({error.code().name})"
