"""One answer on its way from an engine to a client: what of it is sent on, and how it is framed."""

import asyncio
import contextlib
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from llmgw.core.errors import UpstreamFailedError
from llmgw.core.traffic.sse import EventTooLargeError
from llmgw.gateway.entry import Entry
from llmgw.gateway.failures import (
    BrokenOffError,
    KeyRefusedError,
    NotReadyError,
    RedirectedError,
    SilentError,
    StaleConnectionError,
)
from llmgw.gateway.meter import AnswerMeter, CompressedMeter, Meter, StreamMeter
from llmgw.gateway.options import Deadlines
from llmgw.gateway.ports import Client
from llmgw.gateway.render import (
    JSON_HEADER,
    RETRY_SOON,
    error_event,
    status_line,
    wrapped_error,
)
from llmgw.gateway.upstream import Connection, Head
from llmgw.runtime.clock import Clock

REFUSAL_BYTES_MAX: Final = 64 * 1024
"""Refusals of an engine are looked at whole; a longer one is cut."""
_SAID_CHARS_MAX: Final = 1000

# Between the engine and us alone, or about credentials, or said anew by us.
_NOT_PASSED_ON: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization "
    b"proxy-authentication-info te trailer transfer-encoding upgrade content-length server "
    b"set-cookie set-cookie2 www-authenticate authorization x-api-key api-key x-request-id".split()
)


class Turn(Enum):
    """Why who waits for an answer is woken."""

    ENDED = "ended"
    FULL = "full"


class Asked(NamedTuple):
    """What the answer's way depends on, beside the answer."""

    remove_usage: bool
    """The usage event was the gateway's wish."""
    writes_text: bool
    """The answer is text that the model wrote: its length is a guess at its tokens."""
    may_move: bool
    """Another replica could take the call."""


class Answer:
    """Takes an engine's answer as a Sink; failures reach who awaits `turn`."""

    __slots__ = (
        "_asked",
        "_chunked",
        "_client",
        "_clock",
        "_connection",
        "_encoded",
        "_ended",
        "_entry",
        "_failure",
        "_first_lines",
        "_head",
        "_heard",
        "_is_event_stream",
        "_paused",
        "_quiet_since_s",
        "_refusal",
        "_waiter",
        "meter",
        "status",
    )

    def __init__(self, client: Client, entry: Entry, asked: Asked, clock: Clock) -> None:
        self._client = client
        self._entry = entry
        self._asked = asked
        self._clock = clock
        self._connection: Connection | None = None
        self._head: Head | None = None
        self._first_lines = b""
        self._chunked = False
        self._encoded = False
        self._is_event_stream = False
        self._refusal: bytearray | None = None
        self._heard = False
        self._paused = False
        self._quiet_since_s = 0.0
        self._ended = False
        self._failure: UpstreamFailedError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.meter: Meter | None = None
        self.status = 0

    # What the relay calls.

    def begin(self, connection: Connection, request: bytes, now_s: float) -> None:
        """Send the request; the answer comes to this object, perhaps on the second try."""
        self._failure = None
        self._quiet_since_s = now_s
        self._connection = connection
        connection.send(request, self)

    async def turn(self) -> Turn:
        """Wait until the answer has ended or the client is full; raise as the engine failed."""
        if not (self._failure or self._ended or self._paused):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._failure is not None:
            raise self._failure
        return Turn.ENDED if self._ended else Turn.FULL

    async def drained(self) -> None:
        """Wait for the client, then read on."""
        await self._client.drained()
        self._paused = False
        self._heard = True
        if self._connection is not None:
            self._connection.resume()

    def leave(self) -> None:
        """Nobody waits any more: an engine that is still at it stops."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def look_at_time(self, now_s: float, deadlines: Deadlines) -> None:
        """Fail what has been silent for too long; called every now and then."""
        if self._heard:
            self._heard = False
            self._quiet_since_s = now_s
            return
        quiet_s = now_s - self._quiet_since_s
        if self._paused:
            if quiet_s > deadlines.stalled_s:
                self._client.abort()
            return
        limit_s = deadlines.first_byte_s if self._head is None else deadlines.idle_s
        if quiet_s > limit_s:
            self._fail(SilentError(f"the engine said nothing for {limit_s:g} s"))

    def break_off(self, error: UpstreamFailedError) -> None:
        """End what cannot be ended well, so that nobody takes it for whole."""
        if (
            self._is_event_stream
            and self._chunked
            and not self._encoded
            and self.meter is not None
            and self.meter.between_events
        ):
            self._client.write(_chunk(error_event(error)))
            self._client.close_after_this()  # without the last chunk
        else:
            self._client.abort()

    # What the connection calls.

    def head(self, head: Head) -> None:
        """See Sink."""
        self._heard = True
        self._head = head
        self.status = head.status
        if head.status in (401, 403):
            self._fail(KeyRefusedError(f"the engine refused the gateway's key ({head.status})"))
        elif 300 <= head.status < 400:
            self._fail(RedirectedError(f"the engine sent us elsewhere ({head.status})"))
        elif head.status == 503 and self._asked.may_move:
            self._fail(NotReadyError("the engine is not ready (503)"))
        else:
            self._entry.status = head.status
            self._prepare(head)

    def body(self, data: bytes, *, last: bool) -> None:
        """See Sink."""
        self._heard = True
        if self._refusal is not None:
            self._refuse(self._refusal, data, last=last)
        else:
            self._send(data, last=last)
        if last:
            self._end()
        elif self._client.is_full and self._connection is not None:
            self._paused = True
            self._connection.pause()
            self._wake()

    def _end(self) -> None:
        if self.status >= 400:
            self._entry.took_nothing()
        self._connection = None
        self._ended = True
        self._wake()

    def lost(self, why: str, *, untouched: bool) -> None:
        """See Sink."""
        self._connection = None
        if untouched:
            self._fail(StaleConnectionError(f"the engine did not answer: {why}"))
        else:
            self._fail(BrokenOffError(f"the engine's answer broke off: {why}"))

    # How it is done.

    def _fail(self, failure: UpstreamFailedError) -> None:
        self.leave()
        self._failure = self._failure or failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _prepare(self, head: Head) -> None:
        named = _named_by_connection(head)
        content_type = encoding = b""
        retry_soon = RETRY_SOON if head.status == 503 else b""
        lines = [status_line(head.status)]
        for name, value in head.headers:
            lower = name.lower()
            if lower in _NOT_PASSED_ON or lower in named:
                continue
            if lower == b"content-type":
                content_type = value
                continue  # said below, unless the body is replaced
            if lower == b"content-encoding":
                encoding = value.lower()
            elif lower == b"retry-after":
                retry_soon = b""  # the engine knows better
            lines += (name, b": ", value, b"\r\n")
        lines += (b"X-Request-Id: ", self._entry.request.encode(), b"\r\n")
        self._is_event_stream = content_type.lower().startswith(b"text/event-stream")
        self._encoded = encoding not in (b"", b"identity")
        lines.append(retry_soon)
        if head.status >= 400 and not self._encoded:
            self._refusal = bytearray()
        elif content_type:
            lines += (b"Content-Type: ", content_type, b"\r\n")
        if self._refusal is None:
            lines.append(self._framing(head))
        self._first_lines = b"".join(lines)
        self._entry.streamed = self._is_event_stream
        self.meter = self._meter()

    def _meter(self) -> Meter:
        if not self._is_event_stream:
            inner: Meter = AnswerMeter(self._entry, writes_text=self._asked.writes_text)
        else:
            remove_usage = self._asked.remove_usage and not self._encoded
            inner = StreamMeter(self._entry, remove_usage=remove_usage)
        return CompressedMeter(inner) if self._encoded else inner

    def _framing(self, head: Head) -> bytes:
        client = self._client
        if head.status in (204, 304):
            return _connection(client) + b"\r\n"
        if head.length is not None and not self._is_event_stream:
            return b"Content-Length: %d\r\n%s\r\n" % (head.length, _connection(client))
        if client.chunks:
            self._chunked = True
            return b"Transfer-Encoding: chunked\r\n" + _connection(client) + b"\r\n"
        client.close_after_this()
        return b"Connection: close\r\n\r\n"

    def _send(self, data: bytes, *, last: bool) -> None:
        assert self.meter is not None
        if data and self._entry.first_byte_s is None:
            now_s = self._clock.monotonic_s()
            self._entry.first_byte_s = round(now_s - self._client.since_s, 6)
        try:
            passed = self.meter.pass_on(data) if data else b""
        except EventTooLargeError as error:
            self._fail(error)
            return
        if last:
            passed += self.meter.finish()  # which may find the end in what was held back
            if self._ends_without_end():
                self._fail(BrokenOffError("the engine closed its stream before the end"))
                return
        if self._chunked:
            passed = _chunk(passed) if passed else b""
            passed += b"0\r\n\r\n" if last else b""
        if self._first_lines:
            passed = self._take_first_lines() + passed
        if passed:
            self._client.write(passed)

    def _ends_without_end(self) -> bool:
        """Whether nothing but a closed connection says that the stream is over."""
        return (
            self._head is not None
            and self._head.ends_with_connection
            and isinstance(self.meter, StreamMeter)
            and not self.meter.ended
        )

    def _refuse(self, kept: bytearray, data: bytes, *, last: bool) -> None:
        kept += data[: REFUSAL_BYTES_MAX - len(kept)]
        if not last:
            return
        body = bytes(kept) if _has_error(kept) else wrapped_error(self.status, _said(kept))
        self._client.write(
            self._take_first_lines()
            + JSON_HEADER
            + b"Content-Length: %d\r\n%s\r\n%s" % (len(body), _connection(self._client), body)
        )

    def _take_first_lines(self) -> bytes:
        lines, self._first_lines = self._first_lines, b""
        return lines


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _connection(client: Client) -> bytes:
    if not client.keeps_alive:
        return b"Connection: close\r\n"
    return b"" if client.chunks else b"Connection: keep-alive\r\n"


def _named_by_connection(head: Head) -> frozenset[bytes]:
    """Return the headers that `Connection` says are for the next hop only."""
    named = [value for name, value in head.headers if name.lower() == b"connection"]
    return frozenset(part.strip().lower() for value in named for part in value.split(b","))


def _has_error(body: bytearray) -> bool:
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        read = msgspec.json.decode(body)
        return isinstance(read, dict) and isinstance(read.get("error"), dict)
    return False


def _said(body: bytearray) -> str:
    """Return what the engine said, for people."""
    text = body.decode("utf-8", "replace")
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        read = msgspec.json.decode(body)
        if isinstance(read, dict):
            text = str(read.get("detail") or read.get("error") or read.get("message") or text)
    return text.strip()[:_SAID_CHARS_MAX] or "the engine refused the request and gave no reason"
