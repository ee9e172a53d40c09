"""The real llama.cpp behind the gateway, with the tiny model."""

import asyncio
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from llmgw.core.traffic.snapshot import Snapshot, Target
from llmgw.core.traffic.usage import Ending
from llmgw.testing.tiny_gguf import make_tiny_gguf
from llmgw.testing.waiting import eventually_true
from tests.gateway.rig import Raw, chat, options, post, running, snapshot
from tests.guards.parts import require

ENGINE_KEY = "engine-key"
MANY_TOKENS = 3000
LAYERS = 16  # slow enough to be met at work


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require(
        "xllamacpp",
        here=importlib.util.find_spec("xllamacpp") is not None,
        how="pip install 'llmgw[llamacpp]'",
    )
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=LAYERS)


@asynccontextmanager
async def llama(model: Path) -> AsyncIterator[Snapshot]:
    """Run the server until the end of the block; the snapshot routes to it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    flags = ["-m", str(model), "--alias", "m", "--port", str(port), "-np", "2", "-c", "8192"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "llmgw.apps.llama_server",
        *flags,
        "-t",
        "1",
        env={**os.environ, "LLAMA_API_KEY": ENGINE_KEY},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _ready(f"http://127.0.0.1:{port}")
        known = snapshot()
        to = Target("r1", 1, "127.0.0.1", port, ENGINE_KEY)
        yield replace(known, routes=(replace(known.routes[0], targets=(to,)),))
    finally:
        process.kill()
        await process.wait()


async def _ready(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:

        async def is_ready() -> bool:
            try:
                return (await http.get("/health")).status_code == 200
            except httpx.TransportError:
                return False

        await eventually_true(is_ready, within_s=30)


async def _busy_slots(at: Snapshot) -> int:
    to = at.routes[0].targets[0]
    headers = {"Authorization": f"Bearer {ENGINE_KEY}"}
    async with httpx.AsyncClient(headers=headers) as http:
        slots = (await http.get(f"http://{to.host}:{to.port}/slots")).json()
    return sum(slot["is_processing"] for slot in slots)


async def test_a_real_engine_answers_whole_and_streamed_and_is_counted(
    tmp_path: Path, model: Path
) -> None:
    async with llama(model) as at, running(options(tmp_path), lambda: at) as rig:
        whole = await rig.ask(post(chat(max_tokens=5)))
        stream = await rig.ask(post(chat(max_tokens=7, stream=True)))
        asked = chat(max_tokens=7, stream=True, stream_options={"include_usage": True})
        with_usage = await rig.ask(post(asked))
        text = await rig.ask(
            post(
                {"model": "nick", "prompt": "x", "max_tokens": 3, "stream": True}, "/v1/completions"
            )
        )
        records = await rig.records(4)
    assert whole.json["usage"]["completion_tokens"] == 5
    assert (stream.events[-1], text.events[-1]) == ("[DONE]", "[DONE]")
    assert b'"choices":[]' not in stream.body
    assert b'"choices":[]' in with_usage.body
    assert [usage.completion_tokens for usage in records] == [5, 7, 7, 3]
    assert not any(usage.estimated for usage in records)
    assert all(usage.prompt_tokens > 0 for usage in records)


async def test_a_client_that_leaves_frees_the_slot_of_a_real_engine(
    tmp_path: Path, model: Path
) -> None:
    async with llama(model) as at, running(options(tmp_path), lambda: at) as rig:
        async with Raw.to(rig.port) as raw:
            raw.send(post(chat(max_tokens=MANY_TOKENS, stream=True)))
            await raw.tokens_after_head(5)
            assert await _busy_slots(at) == 1
        usage = await rig.record()

        async def all_are_free() -> bool:
            return await _busy_slots(at) == 0

        await eventually_true(all_are_free, within_s=10)
    assert (usage.ending, usage.estimated) == (Ending.CLIENT_LEFT, True)
    assert 0 < usage.completion_tokens < MANY_TOKENS
