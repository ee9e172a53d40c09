"""The way to an engine: pooled keep-alive connections that hand on bodies as they come.

One asyncio.Protocol per connection. Heads and framing are parsed by httptools; of each read from
the socket a sink gets one call, with whatever body bytes it brought. There are no timers here:
what must not take too long is timed by who waits for it.
"""

import asyncio
from collections import deque
from typing import Final, Protocol, cast

import httptools

from llmgw.gateway.failures import ConnectFailedError

HEAD_BYTES_MAX: Final = 64 * 1024
"""Of a head, and of what says nothing in the midst of a body: trailers, chunks' extensions."""
_NO_BODY: Final = frozenset({204, 304})


class Head:
    """The head of an answer."""

    __slots__ = ("chunked", "headers", "length", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        self.chunked = False

    @property
    def ends_with_connection(self) -> bool:
        """Nothing but the end of the connection says where the body ends."""
        return self.length is None and not self.chunked and self.status not in _NO_BODY


class Sink(Protocol):
    """Who an answer is for. After `last`, or after `lost`, no more comes."""

    def head(self, head: Head) -> None:
        """The head has come; the body follows, perhaps at once."""
        ...

    def body(self, data: bytes, *, last: bool) -> None:
        """Some of the body (perhaps empty, with `last`, or with the head)."""
        ...

    def lost(self, why: str, *, untouched: bool) -> None:
        """The answer ends here without an end; `untouched`: not one byte of it had come."""
        ...


class Connection(asyncio.Protocol):
    """One connection to an engine; carries one request at a time."""

    __slots__ = (
        "_body",
        "_complete",
        "_excess",
        "_head",
        "_head_bytes",
        "_headed",
        "_parser",
        "_pool",
        "_reusable",
        "_sink",
        "_touched",
        "_transport",
        "used",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.used = False
        """It has carried a request before: its peer may have closed it meanwhile."""
        self._reset()

    def _reset(self) -> None:
        self._head = Head()
        self._head_bytes = 0
        self._headed = False
        self._touched = False
        self._body: bytes | bytearray = b""
        self._complete = False
        self._reusable = False
        self._excess = False

    # What the relay calls.

    def send(self, request: bytes, sink: Sink) -> None:
        """Send a whole request; its answer goes to `sink`."""
        self._reset()
        self._sink = sink
        if self._transport is None or self._transport.is_closing():
            self._lost("it had closed the connection")
            return
        self._transport.write(request)

    def abort(self) -> None:
        """Drop the answer and the connection at once: the engine sees that nobody listens."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close a connection that carries no request."""
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        """Read no more until `resume`: the client is slower than the engine."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol; both asyncio and uvloop have set TCP_NODELAY by now."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        sink = self._sink
        if sink is None:
            self.abort()  # nobody asked for anything
            return
        self._touched = True
        had_head = self._headed
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._broken(f"its answer is not HTTP ({error})")
                return
            self._excess = True  # the answer is whole; only what follows it is wrong
        if not self._headed:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._broken(f"the head of its answer exceeds {HEAD_BYTES_MAX} bytes")
            return
        if not had_head:
            self._head_bytes = 0
            sink.head(self._head)
        elif self._body or self._complete:
            self._head_bytes = 0
        else:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._broken(f"more than {HEAD_BYTES_MAX} bytes of its body carry nothing")
                return
        self._hand_on(sink)

    def _hand_on(self, sink: Sink) -> None:
        body, self._body = self._body, b""
        if self._sink is not sink:  # it gave up when it saw the head
            return
        if not self._complete:
            sink.body(bytes(body), last=False)
            return
        self._sink = None
        sink.body(bytes(body), last=True)
        if self._reusable and not self._excess:
            self._pool.put(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._transport = None
        self._pool.forget(self)
        sink = self._sink
        if sink is None:
            return
        if exc is None and self._headed and self._head.ends_with_connection:
            self._sink = None
            sink.body(b"", last=True)
            return
        self._lost(f"the connection broke ({exc or 'closed by the engine'})")

    def _broken(self, why: str) -> None:
        sink, self._sink = self._sink, None
        self.abort()
        if sink is not None:
            sink.lost(why, untouched=False)

    def _lost(self, why: str) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.lost(why, untouched=not self._touched)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """See httptools."""
        if self._complete:
            self._excess = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools; what comes behind the head is a trailer, and says nothing that counts."""
        if self._headed:
            return
        self._head.headers.append((name, value))
        lower = name.lower()
        if lower == b"content-length":
            self._head.length = int(value)
        elif lower == b"transfer-encoding":
            self._head.chunked = value.lower().endswith(b"chunked")

    def on_headers_complete(self) -> None:
        """See httptools."""
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._head = Head()  # an interim answer; the real one follows
            return
        self._head.status = status
        self._reusable = self._parser.should_keep_alive()
        self._headed = True

    def on_body(self, data: bytes) -> None:
        """See httptools."""
        if self._complete:
            return
        if not self._body:
            self._body = data  # the usual case: one piece per read, and no copy
        else:
            self._body = bytearray(self._body) if isinstance(self._body, bytes) else self._body
            self._body += data

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._headed:
            self._complete = True


class Pool:
    """The connections to one address."""

    def __init__(self, host: str, port: int, *, idle_max: int, connect_s: float) -> None:
        self.host = host
        self.port = port
        self._idle_max = idle_max
        self._connect_s = connect_s
        self._idle: deque[Connection] = deque()
        self._unused_since_last_sweep = 0
        self._closed = False

    def __len__(self) -> int:
        """How many connections nobody uses."""
        return len(self._idle)

    def take(self) -> Connection | None:
        """Return the connection that was used last, or None: then `connect`."""
        if not self._idle:
            return None
        connection = self._idle.pop()
        self._unused_since_last_sweep = min(self._unused_since_last_sweep, len(self._idle))
        return connection

    async def connect(self) -> Connection:
        """Open another connection; raise ConnectFailedError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self.host, self.port
                )
        except TimeoutError as error:
            raise ConnectFailedError(f"no connection within {self._connect_s} s") from error
        except OSError as error:
            raise ConnectFailedError(f"no connection ({error.strerror or error})") from error
        return connection

    def put(self, connection: Connection) -> None:
        """Take back a connection whose answer has ended well."""
        if self._closed or len(self._idle) >= self._idle_max:
            connection.close()
            return
        connection.used = True
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection.used and connection in self._idle:
            self._idle.remove(connection)

    def sweep(self) -> None:
        """Close what was not needed since the last sweep; the oldest are at the left."""
        for _ in range(min(self._unused_since_last_sweep, len(self._idle))):
            self._idle.popleft().close()
        self._unused_since_last_sweep = len(self._idle)

    def close(self) -> None:
        """Close what nobody uses, and keep nothing from now on."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
