"""A gateway on real sockets, with what tests ask of it."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from llmgw.core.traffic.snapshot import ApiKey, Route, Snapshot, Target
from llmgw.core.traffic.usage import Usage
from llmgw.gateway.gateway import Gateway, build_gateway
from llmgw.gateway.options import Deadlines, GatewayOptions, JournalOptions, Limits
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.tasks import run_services
from llmgw.runtime.threads import ThreadPool
from llmgw.testing.engine import Behaviour, FakeEngine
from llmgw.testing.waiting import eventually, eventually_true

KEY = "sk-test"
SEGMENT_BYTES = 1024 * 1024
QUICK = Deadlines(unready_s=0.2, wait_s=5.0, first_byte_s=20.0, idle_s=20.0, drain_s=0.2)
JOURNAL = JournalOptions(segment_bytes=SEGMENT_BYTES, bytes_max=8 * SEGMENT_BYTES)


def api_key(secret: str = KEY, **changes: Any) -> ApiKey:
    """A key in a snapshot."""
    known = ApiKey("key-1", hashlib.sha256(secret.encode()).hexdigest(), "acme")
    return replace(known, **changes)


def target(engine: FakeEngine, replica: str = "r1", **changes: Any) -> Target:
    """The way to an engine."""
    return replace(Target(replica, 1, "127.0.0.1", engine.port, engine.key), **changes)


def snapshot(*engines: FakeEngine, revision: int = 1, **changes: Any) -> Snapshot:
    """One model `m`, alias `nick`, answered by these engines; one key."""
    targets = tuple(target(engine, f"r{i + 1}") for i, engine in enumerate(engines))
    route = Route("m", aliases=("nick",), targets=targets, created_s=7, why="it loads still")
    return replace(Snapshot(1, revision, (route,), (api_key(),)), **changes)


def options(
    state_dir: Path,
    deadlines: Deadlines = QUICK,
    limits: Limits | None = None,
    journal: JournalOptions = JOURNAL,
) -> GatewayOptions:
    """Options with a quick clock and small files."""
    return GatewayOptions(
        state_dir,
        deadlines=deadlines,
        limits=limits or Limits(),
        journal=journal,
        tick_s=0.05,
    )


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, as it came over the wire."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of a stream's events."""
        return [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]


class Raw:
    """A client's connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Self]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(10):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        named = [line.partition(":") for line in lines[1:] if line]
        return int(lines[0].split()[1]), {n.lower(): value.strip() for n, _, value in named}

    async def chunk(self) -> bytes:
        """The next chunk's data; empty for the last."""
        async with asyncio.timeout(10):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def tokens(self, count: int) -> bytes:
        """Chunks of a stream until so many tokens have come."""
        got = b""
        while got.count(b'"content"') < count:
            got += await self.chunk()
        return got

    async def tokens_after_head(self, count: int) -> bytes:
        """The same, from the answer's beginning on."""
        await self.head()
        return await self.tokens(count)

    async def answer(self, *, no_body: bool = False) -> Answered:
        """A whole answer, which must say where it ends."""
        status, headers = await self.head()
        body = b""
        async with asyncio.timeout(10):
            if no_body:
                pass
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                while data := await self.chunk():
                    body += data
            else:
                assert headers["connection"] == "close"
                body = await self.reader.read()
        return Answered(status, headers, body)

    async def end(self) -> bytes:
        """Everything up to the end of the connection; raises ConnectionResetError for a reset."""
        async with asyncio.timeout(10):
            return await self.reader.read()


def post(
    body: object,
    path: str = "/v1/chat/completions",
    *,
    key: str | None = KEY,
    headers: Sequence[str] = (),
    version: str = "1.1",
) -> bytes:
    """A request's bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(data)}", *headers]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def get(path: str, *, key: str | None = KEY, method: str = "GET") -> bytes:
    """A request without a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chat(**members: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}


@dataclass(slots=True)
class Rig:
    """A running gateway."""

    gateway: Gateway
    stop: asyncio.Event
    engine: FakeEngine = field(default_factory=FakeEngine)

    @property
    def port(self) -> int:
        return self.gateway.port

    async def ask(self, request: bytes) -> Answered:
        """Send one request over a connection of its own and return the whole answer."""
        async with Raw.to(self.port) as raw:
            raw.send(request)
            return await raw.answer(no_body=request.startswith(b"HEAD"))

    async def records(self, count: int) -> tuple[Usage, ...]:
        """The closed records, once there are so many."""

        async def are_there() -> bool:
            return len(await self.gateway.recent_usage()) >= count

        await eventually_true(are_there)
        found = await self.gateway.recent_usage()
        assert len(found) == count
        return found

    async def record(self) -> Usage:
        """The one record."""
        return (await self.records(1))[0]

    async def idle(self) -> None:
        """Nothing is at the engines."""
        await eventually(lambda: not any(self.gateway.load().values()))


@asynccontextmanager
async def running(
    given: GatewayOptions, obeyed: Callable[[], Snapshot] | None = None
) -> AsyncIterator[Rig]:
    """Run a gateway for the block."""
    pool = ThreadPool("test")
    stop = asyncio.Event()
    gateway = await pool.run(build_gateway, given, SystemClock(), pool)
    if obeyed is not None:
        gateway.obey(obeyed())
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_services(gateway.services, stop), name="gateway")
            try:
                yield Rig(gateway, stop)
            finally:
                stop.set()
    finally:
        await pool.close()


@asynccontextmanager
async def serving(
    tmp_path: Path, behaviour: Behaviour | None = None, deadlines: Deadlines = QUICK, **engine: Any
) -> AsyncIterator[Rig]:
    """Run a gateway with one engine."""
    one = FakeEngine(behaviour or Behaviour(), **engine)
    async with one, running(options(tmp_path, deadlines), lambda: snapshot(one)) as rig:
        rig.engine = one
        yield rig
