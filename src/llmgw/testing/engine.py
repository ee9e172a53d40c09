"""An engine that does what it is told, wrong things too: real HTTP on a real socket.

In a test it is `FakeEngine`; as a process, `python -m llmgw.testing.engine -m FILE --port P`, it
takes llama-server's flags (those that it does not know are ignored) and LLAMA_API_KEY. How it
behaves is a `Behaviour`: that of the engine, changed by the member `fake` of a request's body.
"""

import argparse
import asyncio
import gzip
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

WAIT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the engine does with a request."""

    load_s: float = 0.0
    """From its start so long it answers 503 to everything."""
    first_token_s: float = 0.0
    token_s: float = 0.0
    tokens: int = 4
    """Where the request has no `max_tokens`."""
    text: str = "A"
    """Of each token."""
    status: int = 200
    body: str = ""
    """With another status; empty: an error as llama.cpp has it."""
    headers: tuple[str, ...] = ()
    """More header lines of its answers."""
    cut_after: int | None = None
    """Break the connection after so many tokens."""
    error_after: int | None = None
    """Send an error event after so many tokens, then a clean end, as vLLM does."""
    error_code: int = 500
    silent_after: int | None = None
    """Say nothing more after so many tokens; 0: not even a head."""
    drop: bool = False
    """Break the connection before the answer."""
    gzip: bool = False
    says_usage: bool = True
    """Give usage in answers, and in streams where it is asked for."""
    usage_every_chunk: bool = False
    says_done: bool = True
    until_close: bool = False
    """Answers without a length: the end of the connection is theirs."""
    closes_idle: bool = False
    """Close the connection after each answer, without having said so."""
    line_end: str = "\n"
    together: bool = False
    """Write the whole stream at once."""
    pieces: int = 0
    """Write the stream in pieces of so many bytes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 -- JSON
        """Its body."""
        return json.loads(self.body)


class LeftError(Exception):
    """The client has left."""


@dataclass(slots=True)
class FakeEngine:
    """`async with FakeEngine() as engine:` serves on `engine.port`."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    model: str = "m"
    key: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    running: int = 0
    """Requests that it works on."""
    aborted: int = 0
    """Requests whose client left first."""
    finished: int = 0
    connections: int = 0
    """Connections that have been accepted."""
    written: int = 0
    """Bytes of streams that it has written."""
    _server: asyncio.Server | None = None
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _started_s: float = 0.0

    async def __aenter__(self) -> "FakeEngine":
        self._started_s = time.monotonic()
        self._server = await asyncio.start_server(self._serve, self.host, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End at once, as if killed: the port is free and all connections are broken."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                self.seen.append(request)
                behaviour = self._behaviour_for(request)
                self.running += 1
                try:
                    await _Reply(self, behaviour, request, reader, writer).give()
                    self.finished += 1
                except (LeftError, ConnectionError):
                    self.aborted += 1
                    break
                finally:
                    self.running -= 1
                if behaviour.until_close or behaviour.closes_idle:
                    break
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    def _behaviour_for(self, request: Seen) -> Behaviour:
        asked: dict[str, Any] = {}
        with suppress(ValueError):
            body = json.loads(request.body or b"{}")
            asked = body.get("fake") or {} if isinstance(body, dict) else {}
        known = {each.name for each in fields(Behaviour)}
        return replace(self.behaviour, **{k: v for k, v in asked.items() if k in known})

    def loading(self, behaviour: Behaviour) -> bool:
        """Whether it loads still."""
        return time.monotonic() < self._started_s + behaviour.load_s


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, path, headers, body)


@dataclass(slots=True)
class _Reply:
    engine: FakeEngine
    behaviour: Behaviour
    request: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def give(self) -> None:
        """Answer, or misbehave."""
        path = self.request.path.partition("?")[0]
        if self.engine.loading(self.behaviour):
            await self._error(503, "Loading model", "unavailable_error")
        elif path in ("/health", "/v1/health"):
            await self._whole(200, b'{"status":"ok"}')
        elif not self._key_fits():
            await self._error(401, "Invalid API Key", "authentication_error")
        elif path == "/v1/models":
            listed = [{"id": self.engine.model, "object": "model", "owned_by": "fake"}]
            await self._whole(200, json.dumps({"object": "list", "data": listed}).encode())
        elif path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            await self._work(path)
        else:
            await self._error(404, "File Not Found", "not_found_error")

    def _key_fits(self) -> bool:
        if self.engine.key is None:
            return True
        headers = self.request.headers
        return self.engine.key in (
            headers.get("authorization", "").removeprefix("Bearer "),
            headers.get("x-api-key"),
        )

    async def _work(self, path: str) -> None:
        behaviour = self.behaviour
        if behaviour.drop:
            self.writer.transport.abort()
            raise LeftError
        if behaviour.silent_after == 0:
            await self._wait(WAIT_S)
        if behaviour.status != 200:
            if behaviour.body:
                await self._whole(behaviour.status, behaviour.body.encode(), "text/plain")
            else:
                await self._error(behaviour.status, "told to fail", "server_error")
            return
        asked = self.request.json
        if path == "/v1/embeddings":
            await self._embeddings(asked)
        elif asked.get("stream"):
            await self._stream(asked, chat="chat" in path)
        else:
            await self._answer(asked, chat="chat" in path)

    async def _embeddings(self, asked: Mapping[str, Any]) -> None:
        inputs = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        await self._wait(self.behaviour.first_token_s)
        data = [
            {"object": "embedding", "index": i, "embedding": [0.5] * 8}
            for i, _ in enumerate(inputs)
        ]
        usage = {"prompt_tokens": 5 * len(inputs), "total_tokens": 5 * len(inputs)}
        answer = {"object": "list", "model": self.engine.model, "data": data, "usage": usage}
        await self._whole(200, json.dumps(answer).encode())

    async def _answer(self, asked: Mapping[str, Any], *, chat: bool) -> None:
        count = self._count(asked)
        await self._wait(self.behaviour.first_token_s + count * self.behaviour.token_s)
        text = self.behaviour.text * count
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        answer: dict[str, Any] = {
            "id": "fake",
            "object": "chat.completion" if chat else "text_completion",
            "created": 1,
            "model": self.engine.model,
            "choices": [{"index": 0, "finish_reason": "stop", **said}],
        }
        if self.behaviour.says_usage:
            answer["usage"] = _usage(count)
        body = json.dumps(answer).encode()
        if self.behaviour.cut_after is not None:
            self._head(200, "application/json", f"Content-Length: {len(body)}\r\n")
            self.writer.write(body[: len(body) // 2])
            await self.writer.drain()
            self.writer.transport.abort()
            raise LeftError
        await self._whole(200, body)

    async def _stream(self, asked: Mapping[str, Any], *, chat: bool) -> None:
        framing = "" if self.behaviour.until_close else "Transfer-Encoding: chunked\r\n"
        parts = self._events(asked, chat=chat)
        if self.behaviour.gzip:
            whole = "".join(text for text, _ in parts).encode()
            self._head(200, "text/event-stream", f"{framing}Content-Encoding: gzip\r\n")
            self._chunk(gzip.compress(whole))
        else:
            self._head(200, "text/event-stream", framing)
            await self._write_events(parts)
        if not self.behaviour.until_close:
            self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def _write_events(self, parts: Sequence[tuple[str, float]]) -> None:
        behaviour = self.behaviour
        if behaviour.together or behaviour.pieces:
            whole = "".join(text for text, _ in parts).encode()
            size = behaviour.pieces or len(whole)
            for begin in range(0, len(whole), size):
                self._chunk(whole[begin : begin + size])
                await self._wait(behaviour.token_s)
            return
        for count, (text, pause_s) in enumerate(parts):
            await self._wait(pause_s)
            if count == behaviour.cut_after:
                await self.writer.drain()
                self.writer.transport.abort()
                raise LeftError
            if count == behaviour.silent_after:
                await self._wait(WAIT_S)
            self._chunk(text.encode())
            await self.writer.drain()

    def _events(self, asked: Mapping[str, Any], *, chat: bool) -> list[tuple[str, float]]:
        """Return each event and the pause before it."""
        behaviour, end = self.behaviour, self.behaviour.line_end
        wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        events: list[tuple[str, float]] = []

        def add(payload: object, pause_s: float = 0.0) -> None:
            text = payload if isinstance(payload, str) else json.dumps(payload)
            events.append((f"data: {text}{end}{end}", pause_s))

        for index in range(self._count(asked)):
            if index == behaviour.error_after:
                add({"error": {"message": "told to fail", "code": behaviour.error_code}})
                break
            said = {"delta": {"content": behaviour.text}} if chat else {"text": behaviour.text}
            chunk = self._chunk_of([{"index": 0, "finish_reason": None, **said}])
            if behaviour.usage_every_chunk:
                chunk["usage"] = _usage(index + 1)
            pause_s = behaviour.token_s if index else behaviour.first_token_s
            add(chunk, pause_s)
        if wants_usage and behaviour.says_usage:
            add({**self._chunk_of([]), "usage": _usage(self._count(asked))})
        if behaviour.says_done:
            add("[DONE]")
        return events

    def _chunk_of(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk"
        model = self.engine.model
        return {"id": "fake", "object": kind, "created": 1, "model": model, "choices": choices}

    def _count(self, asked: Mapping[str, Any]) -> int:
        return int(asked.get("max_tokens") or self.behaviour.tokens)

    async def _error(self, status: int, message: str, kind: str) -> None:
        error = {"error": {"message": message, "type": kind, "code": status}}
        await self._whole(status, json.dumps(error).encode())

    async def _whole(self, status: int, body: bytes, kind: str = "application/json") -> None:
        extra = ""
        if self.behaviour.gzip and status == 200:
            body, extra = gzip.compress(body), "Content-Encoding: gzip\r\n"
        length = "" if self.behaviour.until_close else f"Content-Length: {len(body)}\r\n"
        self._head(status, kind, length + extra)
        self.writer.write(body)
        await self.writer.drain()

    def _head(self, status: int, kind: str, more: str) -> None:
        extra = "".join(f"{line}\r\n" for line in self.behaviour.headers)
        head = f"HTTP/1.1 {status} Fake\r\nServer: fake\r\nContent-Type: {kind}\r\n{more}{extra}"
        self.writer.write(f"{head}\r\n".encode())

    def _chunk(self, data: bytes) -> None:
        if self.writer.is_closing():  # uvloop raises, asyncio warns
            raise LeftError
        self.engine.written += len(data)
        self.writer.write(
            data if self.behaviour.until_close else b"%x\r\n%b\r\n" % (len(data), data)
        )

    async def _wait(self, seconds: float) -> None:
        """Wait, unless the client leaves."""
        if seconds <= 0 and not self.reader.at_eof():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
                raise LeftError


def _usage(completion: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": completion, "total_tokens": 7 + completion}


async def _main(arguments: Sequence[str], key: str | None) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-a", "--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--behaviour", default="{}", help="JSON, the members of Behaviour")
    given, _ = parser.parse_known_args(arguments)
    behaviour = Behaviour(**json.loads(given.behaviour))
    model = given.alias or given.model
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with FakeEngine(behaviour, model, key, given.host, given.port):
        await stop.wait()


if __name__ == "__main__":
    try:
        asyncio.run(_main(sys.argv[1:], os.environ.get("LLAMA_API_KEY")))
    except OSError as error:
        sys.exit(f"error: {error}")
