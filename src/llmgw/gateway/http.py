"""The data plane's HTTP server: aiohttp reads requests, one low-level handler answers them.

Answers are written to the transport itself, past aiohttp's responses; what is returned to aiohttp
only says whether the connection goes on.
"""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from llmgw.core.errors import LlmgwError
from llmgw.core.traffic.call import BodyTooLargeError, MalformedCallError
from llmgw.gateway.metrics import GatewayMetrics
from llmgw.gateway.options import GatewayOptions
from llmgw.gateway.pipeline import Pipeline
from llmgw.gateway.ports import Endpoint
from llmgw.gateway.render import (
    JSON_HEADER,
    BodyTooSlowError,
    UnknownModelError,
    UnknownPathError,
    WrongMethodError,
    error_body,
    error_headers,
    status_line,
    status_of,
)
from llmgw.gateway.replicas import Model
from llmgw.runtime.clock import Clock

logger = logging.getLogger(__name__)

BACKLOG: Final = 4096
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024
"""asyncio's own high-water mark."""
UNSENT_BYTES_MAX: Final = 64 * 1024
"""In the kernel, of what a client has no room for. Unbounded that is megabytes for each, and a slow
client would look like one that takes nothing: the kernel asks for more when a third is gone."""
CUT_S: Final = 0.05
"""For aiohttp, which waits for handlers once more before it cancels them."""
LINGER_S: Final = 2.0
"""For the rest of a body that was refused, so that the client reads why."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_MODELS: Final = "/v1/models"


def _endpoint(path: str, *, streams: bool = True) -> Endpoint:
    return Endpoint(path, f"POST {path} HTTP/1.1\r\n".encode(), streams)


ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    endpoint.path: endpoint
    for endpoint in (
        _endpoint("/v1/chat/completions"),
        _endpoint("/v1/completions"),
        _endpoint("/v1/embeddings", streams=False),
    )
}


class Life:
    """Of a server: how many requests it carries, and whether it cuts what is left."""

    def __init__(self) -> None:
        self.under_way = 0
        self.cutting = False
        self._ended = asyncio.Event()

    def ended(self) -> None:
        """One request less."""
        self.under_way -= 1
        self._ended.set()

    async def drain(self, seconds: float) -> None:
        """Wait for the requests under way; from then on the rest is cut."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.under_way:
                    self._ended.clear()
                    await self._ended.wait()
        self.cutting = True


class HttpRequest:
    """A request as the pipeline sees it."""

    __slots__ = ("_body_bytes_max", "_body_s", "_request")

    def __init__(self, request: web.BaseRequest, options: GatewayOptions) -> None:
        self._request = request
        self._body_bytes_max = options.limits.body_bytes_max
        self._body_s = options.deadlines.body_s

    def header(self, name: str) -> str | None:
        """See Request."""
        return self._request.headers.get(name)

    async def body(self) -> bytes:
        """See Request."""
        self._check(self._request.content_length or 0)
        content = self._request.content
        try:
            if content.is_eof():
                whole = content.read_nowait()
                self._check(len(whole))  # it may have come compressed
                return whole
            self._say_continue()
            async with asyncio.timeout(self._body_s):
                return await self._read()
        except TimeoutError:
            raise BodyTooSlowError(f"the body did not come within {self._body_s:g} s") from None
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise MalformedCallError(f"the body cannot be read: {error}") from error

    async def _read(self) -> bytes:
        body = bytearray()
        while data := await self._request.content.readany():
            body += data
            self._check(len(body))
        return bytes(body)

    def _check(self, body_bytes: int) -> None:
        if body_bytes > self._body_bytes_max:
            raise BodyTooLargeError(f"the body exceeds {self._body_bytes_max} bytes")

    def _say_continue(self) -> None:
        expected = self._request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
        transport = self._request.transport
        if expected and self._request.version >= (1, 1) and transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


class HttpClient:
    """The client at the other end of an aiohttp connection."""

    __slots__ = ("_life", "_request", "_transport", "chunks", "keeps_alive", "since_s", "started")

    def __init__(
        self, request: web.BaseRequest, transport: asyncio.Transport, life: Life, since_s: float
    ) -> None:
        self._request = request
        self._life = life
        self._transport = transport
        self.since_s = since_s
        self.started = False
        self.chunks = request.version >= (1, 1)
        self.keeps_alive = request.keep_alive

    @property
    def gone(self) -> bool:
        """See Client; who is cut off by us has not left."""
        if self._life.cutting:
            return False
        return self._request.transport is None or self._transport.is_closing()

    @property
    def is_full(self) -> bool:
        """See Client."""
        return (
            not self._transport.is_closing()
            and self._transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX
        )

    def write(self, data: bytes) -> None:
        """See Client; what is written to one who has left is dropped, as the handler soon is."""
        self.started = True
        if not self._transport.is_closing():  # uvloop raises, asyncio warns
            self._transport.write(data)

    async def drained(self) -> None:
        """See Client."""
        with contextlib.suppress(ConnectionError):  # then the handler is cancelled
            await self._request.writer.drain()

    def close_after_this(self) -> None:
        """See Client."""
        self.keeps_alive = False

    def abort(self) -> None:
        """See Client: with a reset, since a plain end may be a whole answer's end."""
        self.keeps_alive = False
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def answer(self, status: int, headers: bytes, body: bytes, *, head_only: bool = False) -> None:
        """Send a whole answer of the gateway's own."""
        if not self._request.content.is_eof():
            self.keeps_alive = False  # the rest of the body is not waited for
        connection = b"" if self.chunks else b"Connection: keep-alive\r\n"
        self.write(
            b"%b%b%bContent-Length: %d\r\n%b\r\n%b"
            % (
                status_line(status),
                JSON_HEADER,
                headers,
                len(body),
                connection if self.keeps_alive else b"Connection: close\r\n",
                b"" if head_only else body,
            )
        )


class _Written(web.StreamResponse):
    """Stands for an answer that has been written already; says whether the connection goes on."""

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__()
        self._goes_on = goes_on

    @property
    def keep_alive(self) -> bool:
        """See StreamResponse."""
        return self._goes_on

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to do."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to do."""


class _Server(web.Server):
    """Keeps the number of connections within its bound."""

    connections_max = 0
    open_connections = 0

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.open_connections += 1
        if self.open_connections > self.connections_max:
            transport.abort()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        self.open_connections -= 1
        super().connection_lost(handler, exc)


class HttpServer:
    """The service that listens."""

    name = "http"

    def __init__(
        self, options: GatewayOptions, pipeline: Pipeline, metrics: GatewayMetrics, clock: Clock
    ) -> None:
        self._options = options
        self._pipeline = pipeline
        self._metrics = metrics
        self._clock = clock
        self._life = Life()
        self._goes_on = _Written(goes_on=True)
        self._ends = _Written(goes_on=False)
        self._socket = bind(options)
        self.port: int = self._socket.getsockname()[1]

    async def run(self) -> None:
        """Serve until cancelled; then let answers under way end, within `drain_s`."""
        deadlines = self._options.deadlines
        server = _Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=deadlines.keep_alive_s,
            lingering_time=LINGER_S,
            logger=_quiet_logger(),
        )
        server.connections_max = self._options.limits.connections_max
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(server, sock=self._socket, backlog=BACKLOG)
        try:
            await loop.create_future()
        finally:
            listener.close()
            server.pre_shutdown()
            await self._life.drain(deadlines.drain_s)
            await server.shutdown(CUT_S)

    def close(self) -> None:
        """Give the port back; for a server that has never run."""
        self._socket.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return self._ends
        client = HttpClient(request, transport, self._life, self._clock.monotonic_s())
        self._life.under_way += 1
        try:
            await self._answer(request, client)
        except LlmgwError as error:
            self._refuse(request, client, error)
        except Exception:
            logger.exception("a request failed")
            self._refuse(request, client, None)
        finally:
            self._life.ended()
        if client.is_full and not client.gone:
            await self._drain(client)
        return self._goes_on if client.keeps_alive else self._ends

    async def _answer(self, request: web.BaseRequest, client: HttpClient) -> None:
        endpoint = ENDPOINTS.get(request.raw_path) or ENDPOINTS.get(request.path)
        if endpoint is not None:
            if request.method != hdrs.METH_POST:
                raise WrongMethodError(f"{endpoint.path} takes POST", "POST")
            await self._pipeline.handle(endpoint, HttpRequest(request, self._options), client)
            return
        path = unquote(request.rel_url.raw_path)
        if path == _MODELS or path.startswith(f"{_MODELS}/"):
            self._models(request, client, path[len(_MODELS) + 1 :])
            return
        raise UnknownPathError(f"there is nothing at {request.path[:200]}")

    def _models(self, request: web.BaseRequest, client: HttpClient, name: str) -> None:
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            raise WrongMethodError(f"{_MODELS} takes GET", "GET, HEAD")
        models = self._pipeline.models_of(HttpRequest(request, self._options))
        if not name:
            listed = [_described(each, model) for each, model in sorted(models.items())]
            body: object = {"object": "list", "data": listed}
        elif name in models:
            body = _described(name, models[name])
        else:
            raise UnknownModelError(f"the model `{name[:200]}` does not exist for this key")
        head_only = request.method == hdrs.METH_HEAD
        client.answer(200, b"", msgspec.json.encode(body), head_only=head_only)

    def _refuse(
        self, request: web.BaseRequest, client: HttpClient, error: LlmgwError | None
    ) -> None:
        if client.started:
            if client.keeps_alive and not client.gone:
                client.abort()  # what was sent has no end
            return
        status = 500 if error is None else status_of(error)
        self._metrics.refused("internal" if error is None else error.code)
        head_only = request.method == hdrs.METH_HEAD
        client.answer(status, error_headers(error), error_body(error), head_only=head_only)

    async def _drain(self, client: HttpClient) -> None:
        try:
            async with asyncio.timeout(self._options.deadlines.stalled_s):
                await client.drained()
        except TimeoutError:
            client.abort()


def bind(options: GatewayOptions) -> socket.socket:
    """Take the port."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections take this over from what listens.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        if options.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((options.host, options.port))
        bound.listen(BACKLOG)  # who comes before the service runs waits in the kernel's queue
    except OSError as error:
        bound.close()
        where = f"{options.host}:{options.port}"
        raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from error
    bound.settimeout(0)
    return bound


def _described(name: str, model: Model) -> dict[str, str | int]:
    created_s = model.route.created_s
    return {"id": name, "object": "model", "created": created_s, "owned_by": "llmgw"}


def _quiet_logger() -> logging.Logger:
    """Return aiohttp's logger here: what strangers send that is not HTTP is no news."""
    quiet = logging.Logger(f"{__name__}.server")  # noqa: LOG001 -- its filter is nobody else's
    quiet.parent = logger
    quiet.addFilter(lambda record: not _is_about_bad_http(record))
    return quiet


def _is_about_bad_http(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, HttpProcessingError)
