"""Clients that leave, stall, or are still there when the gateway goes."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.core.traffic.usage import Ending
from llmgw.gateway.options import Limits
from llmgw.testing.engine import Behaviour, FakeEngine
from llmgw.testing.waiting import eventually, eventually_true
from tests.gateway.rig import QUICK, Raw, chat, options, post, running, serving, snapshot

SLOW = Behaviour(first_token_s=600)
PATHS = {
    "/v1/chat/completions": chat(),
    "/v1/completions": {"model": "m", "prompt": "x"},
    "/v1/embeddings": {"model": "m", "input": "x"},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_who_leaves_before_the_first_byte_frees_the_engine(
    tmp_path: Path, path: str, streamed: bool
) -> None:
    body = PATHS[path] | ({"stream": True} if streamed else {})
    async with serving(tmp_path, SLOW) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(body, path))
            await eventually(lambda: rig.engine.running == 1)
        await eventually(lambda: rig.engine.aborted == 1)
        usage = await rig.record()
        await rig.idle()
    assert (usage.ending, usage.status) == (Ending.CLIENT_LEFT, 499)
    assert (usage.completion_tokens, usage.estimated) == (0, True)
    assert usage.prompt_tokens > 0


async def test_who_leaves_in_mid_stream_pays_for_what_came(tmp_path: Path) -> None:
    async with serving(tmp_path, Behaviour(silent_after=3)) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat(stream=True, max_tokens=9)))
            await raw.head()
            await raw.tokens(3)
        await eventually(lambda: rig.engine.aborted == 1)
        usage = await rig.record()
    assert (usage.ending, usage.status) == (Ending.CLIENT_LEFT, 499)
    assert (usage.completion_tokens, usage.estimated, usage.streamed) == (3, True, True)


async def test_who_leaves_after_a_usage_in_a_chunk_pays_what_the_engine_said(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, Behaviour(silent_after=3, usage_every_chunk=True)) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat(stream=True, max_tokens=9)))
            await raw.head()
            await raw.tokens(3)
        usage = await rig.record()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (7, 3, False)


async def test_who_leaves_the_queue_leaves_no_place_taken(tmp_path: Path) -> None:
    given = options(tmp_path, limits=Limits(in_flight_max=1))
    async with FakeEngine(SLOW) as engine, running(given, lambda: snapshot(engine)) as rig:
        async with Raw.to(rig.port) as first:
            first.send(post(chat()))
            await eventually(lambda: engine.running == 1)
            async with Raw.to(rig.port) as second:
                second.send(post(chat()))
                await eventually(lambda: "gateway_waiting 1.0" in rig.gateway.metrics_text())
            await eventually(lambda: "gateway_waiting 0.0" in rig.gateway.metrics_text())
            usage = await rig.record()
        await rig.idle()
        engine.behaviour = Behaviour()
        assert (await rig.ask(post(chat()))).status == 200
    assert (usage.ending, usage.replica, usage.prompt_tokens) == (Ending.CLIENT_LEFT, "", 0)


async def test_twenty_that_leave_at_once_leave_no_place_taken(tmp_path: Path) -> None:
    given = options(tmp_path, limits=Limits(in_flight_max=3))
    async with FakeEngine(SLOW) as engine, running(given, lambda: snapshot(engine)) as rig:
        raws = [Raw(*await asyncio.open_connection("127.0.0.1", rig.port)) for _ in range(20)]
        for raw in raws:
            raw.send(post(chat(stream=True)))
        await eventually(lambda: "gateway_waiting 17.0" in rig.gateway.metrics_text())
        for raw in raws:
            raw.writer.transport.abort()
        records = await rig.records(20)
        await rig.idle()
        await eventually(lambda: engine.running == 0)
    assert {usage.ending for usage in records} == {Ending.CLIENT_LEFT}


async def test_who_leaves_in_the_midst_of_the_body_is_recorded_and_free(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat())[:-5])
            await eventually(lambda: rig.gateway.health()[1]["open_requests"] == 1)
        usage = await rig.record()
    assert (usage.ending, usage.prompt_tokens) == (Ending.CLIENT_LEFT, 0)
    assert rig.engine.seen == []


async def test_a_slow_client_slows_the_engine_and_gets_everything(tmp_path: Path) -> None:
    behaviour = Behaviour(text="x" * 100_000, tokens=400)
    async with serving(tmp_path, behaviour) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat(stream=True)))
            await raw.head()
            before = await _resting_place(rig.engine, raw)
            assert before < 40_000_000  # the engine waits: it has not written all
            size = 0
            while data := await raw.chunk():
                size += len(data)
        usage = await rig.record()
    assert size > 40_000_000
    assert (usage.ending, usage.completion_tokens) == (Ending.ANSWERED, 400)


async def _resting_place(engine: FakeEngine, raw: Raw) -> int:
    """How much the client has been sent when nothing moves any more."""
    raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
    assert engine.running == 1
    last, since_s = -1, 0.0

    def is_still() -> bool:
        nonlocal last, since_s
        now_s = asyncio.get_running_loop().time()
        if engine.written != last:
            last, since_s = engine.written, now_s
        return now_s - since_s > 0.3

    await eventually(is_still)
    raw.reader._transport.resume_reading()  # type: ignore[attr-defined]
    return last


async def test_a_client_that_takes_nothing_counts_as_gone(tmp_path: Path) -> None:
    behaviour = Behaviour(text="x" * 100_000, tokens=400)
    quick = replace(QUICK, stalled_s=0.3)
    async with serving(tmp_path, behaviour, quick) as rig, Raw.to(rig.port) as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        raw.send(post(chat(stream=True)))
        usage = await rig.record()
        await eventually(lambda: rig.engine.aborted == 1)
    assert (usage.ending, usage.status) == (Ending.CLIENT_LEFT, 499)


async def test_a_client_that_reads_slowly_is_not_one_that_takes_nothing(tmp_path: Path) -> None:
    behaviour = Behaviour(text="x" * 100_000, tokens=400)
    quick = replace(QUICK, stalled_s=1.5)
    async with serving(tmp_path, behaviour, quick) as rig:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", rig.port))
            await loop.sock_sendall(slow, post(chat(stream=True)))
            taken = 0

            async def takes_some() -> bool:
                nonlocal taken
                taken += len(await loop.sock_recv(slow, 5_000))  # raises when it is cut off
                return taken > 1_000_000

            await eventually_true(takes_some, within_s=30.0)
        usage = await rig.record()
    assert usage.ending is Ending.CLIENT_LEFT
    assert rig.engine.written < 10_000_000


async def test_a_gateway_that_stops_lets_answers_end_within_bounds(tmp_path: Path) -> None:
    async with FakeEngine(Behaviour(token_s=0.1)) as engine:
        given = options(tmp_path, replace(QUICK, drain_s=10.0))
        async with running(given, lambda: snapshot(engine)) as rig, Raw.to(rig.port) as raw:
            raw.send(post(chat(stream=True, max_tokens=5)))
            await raw.head()
            rig.stop.set()
            got = await raw.tokens(5)
            while data := await raw.chunk():
                got += data
    assert got.endswith(b"data: [DONE]\n\n")


async def test_what_a_stopping_gateway_cuts_is_its_own_fault(tmp_path: Path) -> None:
    async with FakeEngine(Behaviour(silent_after=2)) as engine:
        async with (
            running(options(tmp_path), lambda: snapshot(engine)) as rig,
            Raw.to(rig.port) as raw,
        ):
            raw.send(post(chat(stream=True, max_tokens=5)))
            await raw.head()
            await raw.tokens(2)
            rig.stop.set()
            await raw.end()
        async with running(options(tmp_path)) as again:
            usage = await again.record()
    assert (usage.ending, usage.completion_tokens) == (Ending.OUR_FAULT, 2)
    await eventually(lambda: engine.aborted == 1)
