"""The fake engine as a process, as agents start it."""

import asyncio
import contextlib
import json
import os
import socket
import sys

import httpx

from llmgw.testing.waiting import eventually_true

KEY = "engine-key"


async def test_it_loads_serves_and_stops_like_llama_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    flags = ["-m", "x.gguf", "--alias", "m", "--port", str(port), "-c", "512", "--no-slots"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "llmgw.testing.engine",
        *flags,
        "--behaviour",
        json.dumps({"load_s": 2.0}),
        env={**os.environ, "LLAMA_API_KEY": KEY},
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            seen = await _statuses_until_ready(http)
            assert (await http.get("/v1/models")).status_code == 401
            models = await http.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        process.terminate()
        async with asyncio.timeout(10):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert seen == {503, 200}
    assert [model["id"] for model in models.json()["data"]] == ["m"]


async def _statuses_until_ready(http: httpx.AsyncClient) -> set[int]:
    seen: set[int] = set()

    async def is_ready() -> bool:
        with contextlib.suppress(httpx.TransportError):
            seen.add((await http.get("/health")).status_code)
        return 200 in seen

    await eventually_true(is_ready, within_s=20)
    return seen
