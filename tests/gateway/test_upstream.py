"""Engines' HTTP in its rarer forms, written byte by byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.core.traffic.snapshot import Target
from llmgw.core.traffic.usage import Ending
from llmgw.gateway.relay import STALE_S
from llmgw.gateway.upstream import HEAD_BYTES_MAX
from llmgw.testing.waiting import eventually
from tests.gateway.rig import Raw, Rig, chat, options, post, running, snapshot

USAGE = {"prompt_tokens": 1, "completion_tokens": 2}
BODY = json.dumps({"choices": [], "usage": USAGE}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
JSON = b"Content-Type: application/json\r\n"
TURNS = 10
OK = b"HTTP/1.1 200 OK\r\n" + JSON


class Script:
    """An engine that answers each request by what the script says next."""

    def __init__(self, *turns: list[bytes]) -> None:
        self.turns = list(turns)
        self.connections = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while self.turns:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                for piece in self.turns.pop(0):
                    if piece == b"CLOSE":
                        return
                    if piece == b"LATE":
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(), STALE_S + 0.2)
                        continue
                    if piece == b"STAY":
                        await reader.read()
                        return
                    writer.write(piece)
                    await writer.drain()
                    for _ in range(TURNS):  # so that pieces arrive one by one
                        await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def scripted(tmp_path: Path, *turns: list[bytes]) -> AsyncIterator[tuple[Rig, Script]]:
    """A gateway in front of a script."""
    script = Script(*turns)
    async with await asyncio.start_server(script.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        known = snapshot()
        routes = (replace(known.routes[0], targets=(Target("r1", 1, "127.0.0.1", port),)),)
        obeyed = replace(known, routes=routes)
        async with running(options(tmp_path), lambda: obeyed) as rig:
            yield rig, script
        await eventually(lambda: script.open == 0)


@pytest.mark.parametrize(
    "pieces",
    [
        [OK + LENGTH + b"\r\n" + BODY],
        [OK + LENGTH + b"\r\n", BODY[:5], BODY[5:]],
        [OK[:9], OK[9:], LENGTH[:4], LENGTH[4:] + b"\r\n" + BODY],
        [b"HTTP/1.1 100 Continue\r\n\r\n", OK + LENGTH + b"\r\n" + BODY],
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\n" + BODY[:4] + b"\r\n", b"", b"DONE"],
        [OK.replace(b"1.1", b"1.0") + b"\r\n" + BODY, b"CLOSE"],
    ],
    ids=["at once", "cut body", "cut head", "continue", "hints", "chunks", "until close"],
)
async def test_an_answer_in_any_framing_arrives_whole(tmp_path: Path, pieces: list[bytes]) -> None:
    if pieces[-1] == b"DONE":
        pieces = [
            *pieces[:-2],
            b"%x;x=y\r\n%b\r\n" % (len(BODY) - 4, BODY[4:]),
            b"0\r\nT: 1\r\n\r\n",
        ]
    async with scripted(tmp_path, pieces) as (rig, _):
        answer = await rig.ask(post(chat()))
        usage = await rig.record()
    assert (answer.status, answer.body) == (200, BODY)
    assert "link" not in answer.headers
    assert (usage.completion_tokens, usage.estimated) == (2, False)


async def test_an_answer_without_a_body_is_whole(tmp_path: Path) -> None:
    async with scripted(tmp_path, [b"HTTP/1.1 204 No Content\r\n\r\n"]) as (rig, _):
        answer = await rig.ask(post(chat(), headers=["Connection: close"]))
    assert (answer.status, answer.body) == (204, b"")


@pytest.mark.parametrize(
    "first",
    [
        [OK + LENGTH + b"\r\n" + BODY + b"HTTP/1.1 200 OK\r\n"],
        [OK + LENGTH + b"\r\n" + BODY + b"garbage"],
        [OK + LENGTH + b"Connection: close\r\n\r\n" + BODY],
        [OK + LENGTH + b"\r\n" + BODY, b"unasked"],
    ],
    ids=["another head", "garbage", "close", "unasked"],
)
async def test_a_connection_that_is_not_at_an_answers_end_is_not_used_again(
    tmp_path: Path, first: list[bytes]
) -> None:
    second = [OK + LENGTH + b"\r\n" + BODY]
    async with scripted(tmp_path, first, second) as (rig, script):
        assert (await rig.ask(post(chat()))).body == BODY
        await eventually(lambda: script.open == 0)
        assert (await rig.ask(post(chat()))).body == BODY
    assert script.connections == 2


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"],
        [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nzzz"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b"HTTP/1.1 20", b"CLOSE"],
    ],
    ids=["endless head", "two lengths", "upgrade", "bad chunk", "cut head"],
)
async def test_an_answer_that_is_none_is_the_engines_failure(
    tmp_path: Path, pieces: list[bytes]
) -> None:
    async with scripted(tmp_path, pieces) as (rig, _):
        answer = await rig.ask(post(chat()))
        usage = await rig.record()
    assert len(pieces[0]) < 1000 or len(pieces[0]) > HEAD_BYTES_MAX
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_broke_off")
    assert usage.ending is Ending.ENGINE_FAILED


async def test_a_stream_that_only_closes_was_cut_unless_it_said_that_it_was_done(
    tmp_path: Path,
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    event = b'data: {"choices":[{"delta":{"content":"A"}}]}\n\n'
    done = b"data: [DONE]\n\n"
    body = post(chat(stream=True), version="1.1")
    async with scripted(tmp_path, [head + event + done, b"CLOSE"]) as (rig, _):
        whole = await rig.ask(body)
    assert whole.body == event + done
    async with scripted(tmp_path / "2", [head + event, b"CLOSE"]) as (rig, _):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await rig.ask(body)
        assert (await rig.record()).ending is Ending.ENGINE_FAILED


@pytest.mark.parametrize(
    "last",
    [
        b"data: [DONE]\r\r",
        b"data: [DONE]\n",
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\n',
    ],
    ids=["carriage returns", "no blank line", "usage"],
)
async def test_a_stream_that_closes_behind_its_last_word_is_whole(
    tmp_path: Path, last: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    stream = b'data: {"choices":[{"delta":{"content":"A"}}]}\n\n' + last
    asking = post(chat(stream=True, stream_options={"include_usage": True}))
    async with scripted(tmp_path, [head + stream, b"CLOSE"]) as (rig, _):
        assert (await rig.ask(asking)).body == stream
        assert (await rig.record()).ending is Ending.ANSWERED


async def test_a_connection_that_closes_when_it_is_used_again_is_replaced(tmp_path: Path) -> None:
    whole = OK + LENGTH + b"\r\n" + BODY
    async with scripted(tmp_path, [whole], [b"CLOSE"], [whole]) as (rig, script):
        assert [(await rig.ask(post(chat()))).status for _ in range(2)] == [200, 200]
        assert "upstream_failures_total{" not in rig.gateway.metrics_text()
    assert script.connections == 2


async def test_an_engine_that_had_the_request_for_a_while_does_not_get_it_twice(
    tmp_path: Path,
) -> None:
    whole = OK + LENGTH + b"\r\n" + BODY
    async with scripted(tmp_path, [whole], [b"LATE", b"CLOSE"], [whole]) as (rig, script):
        assert (await rig.ask(post(chat()))).status == 200
        answer = await rig.ask(post(chat()))
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_closed")
    assert script.connections == 1


@pytest.mark.parametrize("trailer", [b"X-Late: y", b"Retry-After: 5", b"Content-Type: text/plain"])
async def test_trailers_go_nowhere_however_they_come(tmp_path: Path, trailer: bytes) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(BODY), BODY)
    end = b"0\r\n" + trailer + b"\r\n\r\n"
    for number, pieces in enumerate([[OK + chunked + end], [OK + chunked, end]]):
        async with scripted(tmp_path / str(number), pieces) as (rig, _):
            answer = await rig.ask(post(chat()))
        assert (answer.status, answer.body) == (200, BODY)
        known = {"content-type": "application/json", "transfer-encoding": "chunked"}
        assert answer.headers == {**known, "x-request-id": answer.headers["x-request-id"]}


@pytest.mark.parametrize("nothing", [b"X-Late: yyyyyy\r\n", b"1;" + b"e" * 60 + b"\r\n"])
async def test_what_carries_nothing_is_bounded(tmp_path: Path, nothing: bytes) -> None:
    chunked = OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n"
    begin = b"0\r\n" if nothing.startswith(b"X") else b"1;"
    flood = [nothing.replace(b"\r\n", b"e") * 1000 if begin == b"1;" else nothing * 1000] * 40
    async with scripted(tmp_path, [chunked, begin, *flood, b"STAY"]) as (rig, _):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await rig.ask(post(chat()))
        assert (await rig.record()).ending is Ending.ENGINE_FAILED


async def test_an_engine_that_names_another_address_has_failed(tmp_path: Path) -> None:
    elsewhere = b"Location: http://10.9.8.7:1/v1/chat/completions\r\nContent-Length: 0\r\n\r\n"
    async with scripted(tmp_path, [b"HTTP/1.1 307 Elsewhere\r\n" + elsewhere]) as (rig, _):
        answer = await rig.ask(post(chat()))
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_redirected")
    assert "location" not in answer.headers
    assert b"10.9.8.7" not in answer.body


async def test_who_must_wait_is_told_once_how_long(tmp_path: Path) -> None:
    said = b"HTTP/1.1 503 No\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n"
    unsaid = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
    async with scripted(tmp_path, [said], [unsaid]) as (rig, _), Raw.to(rig.port) as raw:
        for seconds in (b"9", b"2"):
            raw.send(post(chat()))
            head = await raw.reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
            await raw.reader.readexactly(length)
            assert head.count(b"Retry-After") == 1
            assert b"Retry-After: " + seconds + b"\r\n" in head


async def test_an_event_larger_than_may_be_ends_the_stream(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    flood = [b"data: " + b"x" * 2**20] + [b"x" * 2**20] * 9
    async with scripted(tmp_path, [head, *flood]) as (rig, _):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await rig.ask(post(chat(stream=True)))
        assert 'code="upstream_event_too_large"' in rig.gateway.metrics_text()
