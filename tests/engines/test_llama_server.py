"""The server from the wheel as a process: it takes the plan and behaves as llama-server does."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.catalog import EngineKind, Model, Profile
from llmgw.core.fleet.placement import PlacedShard, Placement
from llmgw.core.ids import NodeId, ReplicaId
from llmgw.engines.base import Refused
from llmgw.engines.llamacpp import LLAMACPP
from llmgw.testing.tiny_gguf import make_tiny_gguf

KEY = "replica-key"
AUTH = {"Authorization": f"Bearer {KEY}"}
LOAD_S_MAX = 60.0
SLOW_LAYERS = 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes a moment to load, and tens of seconds for a long answer."""
    folder = tmp_path_factory.mktemp("slow")
    return make_tiny_gguf(folder / "slow.gguf", pad_mb=150, layers=SLOW_LAYERS)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert isinstance(port, int)
        return port


@dataclass
class Server:
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient
    port: int
    spec: ShardSpec

    async def ready(self) -> list[int]:
        """Wait until it is, and return the statuses that it answered before."""
        seen: list[int] = []
        async with asyncio.timeout(LOAD_S_MAX):
            while True:
                try:
                    status = (await self.http.get("/health")).status_code
                except httpx.TransportError:
                    assert self.process.returncode is None, await self.said()
                    await asyncio.sleep(0)
                    continue
                if status == 200:
                    return seen
                seen.append(status)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), LOAD_S_MAX)

    async def said(self) -> str:
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), LOAD_S_MAX)).decode()


@asynccontextmanager
async def started(model: Path, **fields: Any) -> AsyncIterator[Server]:
    """Start exactly what the plan says, as an agent would."""
    port = fields.pop("port", None) or free_port()
    profile = Profile("p", EngineKind.LLAMACPP, str(model), **fields)
    shard = PlacedShard(NodeId("n"), 0, "127.0.0.1", port)
    plan = LLAMACPP.plan(
        Placement(ReplicaId("r"), 1, "tiny", Model("tiny").served_names, profile, (shard,))
    )
    assert not isinstance(plan, Refused)
    (command,) = plan[0].commands
    environment = {**command.environment, "PATH": "/usr/bin:/bin", "LLAMA_API_KEY": KEY}
    async with (
        running(command.argv[1:], environment) as process,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=LOAD_S_MAX, trust_env=False
        ) as http,
    ):
        yield Server(process, http, port, plan[0])


@asynccontextmanager
async def running(
    arguments: tuple[str, ...], environment: dict[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "llmgw.apps.llama_server", *arguments,
        env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def fails(*arguments: str) -> str:
    """Return what a start that must end with status 1 says."""
    async with running(arguments, {"PATH": "/usr/bin:/bin"}) as process:
        _, said = await asyncio.wait_for(process.communicate(), LOAD_S_MAX)
        assert process.returncode == 1
        return said.decode()


def listening_ports(pid: int) -> set[str]:
    """Return the local addresses of a process's listening sockets, as the kernel writes them."""
    links = (Path(f"/proc/{pid}/fd") / fd.name for fd in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {str(link.readlink())[8:-1] for link in links if "socket:" in str(link.readlink())}
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    rows += [row.split() for row in Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


async def test_it_answers_503_while_it_loads_and_then_lists_its_name(slow: Path) -> None:
    async with started(slow, context_tokens=512, parallel_requests=2) as server:
        seen = await server.ready()
        assert server.spec.readiness is not None
        assert set(seen) == {server.spec.readiness.loading_status}
        listed = (await server.http.get("/v1/models", headers=AUTH)).json()["data"]
        assert [model["id"] for model in listed] == ["tiny"]
        assert listed[0]["meta"]["n_ctx"] == 512


async def test_it_needs_its_key_listens_where_it_was_told_and_offers_only_what_is_used(
    tiny: Path,
) -> None:
    async with started(tiny) as server:
        await server.ready()
        for headers, status in (({}, 401), ({"Authorization": "Bearer other"}, 401), (AUTH, 200)):
            assert (await server.http.get("/metrics", headers=headers)).status_code == status
        assert (await server.http.get("/slots", headers=AUTH)).status_code == 501
        assert (await server.http.get("/", headers=AUTH)).status_code == 404
        assert listening_ports(server.process.pid) == {f"0100007F:{server.port:04X}"}


async def test_an_answer_has_exactly_the_tokens_that_were_asked_for_streamed_and_not(
    tiny: Path,
) -> None:
    async with started(tiny) as server:
        await server.ready()
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
        whole = (await server.http.post("/v1/chat/completions", headers=AUTH, json=body)).json()
        assert whole["usage"]["completion_tokens"] == 20
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with server.http.stream(
            "POST", "/v1/chat/completions", headers=AUTH, json=body
        ) as answer:
            lines = [line async for line in answer.aiter_lines()]
        assert lines.count("data: [DONE]") == 1
        assert any('"completion_tokens":20' in line for line in lines)


async def test_embeddings_are_turned_on_by_the_profiles_arguments(tiny: Path) -> None:
    async with started(tiny, arguments=("--embeddings", "--pooling", "mean")) as server:
        await server.ready()
        body = {"model": "tiny", "input": "hi"}
        answer = await server.http.post("/v1/embeddings", headers=AUTH, json=body)
        assert len(answer.json()["data"][0]["embedding"]) == 64


async def test_sigterm_at_rest_ends_it_with_0(tiny: Path) -> None:
    async with started(tiny) as server:
        await server.ready()
        server.process.terminate()
        assert await server.ended() == 0


async def test_sigterm_with_a_stream_open_waits_for_a_ping_not_for_the_answer(slow: Path) -> None:
    async with started(slow, context_tokens=4096) as server:
        await server.ready()
        lines: list[str] = []
        with pytest.raises(httpx.RemoteProtocolError):
            await stream_and_terminate(server, lines)
        # The default ping of 30 s would hold it for as long.
        assert await asyncio.wait_for(server.ended(), 15.0) == 0
        assert "data: [DONE]" not in lines


async def stream_and_terminate(server: Server, lines: list[str]) -> None:
    body = {"prompt": "hi", "max_tokens": 4000, "stream": True}
    async with server.http.stream("POST", "/v1/completions", headers=AUTH, json=body) as answer:
        async for line in answer.aiter_lines():
            lines.append(line)
            if len(lines) == 3:
                server.process.terminate()


async def test_sigterm_while_it_loads_ends_it_at_once(slow: Path) -> None:
    async with started(slow) as server:
        async with asyncio.timeout(LOAD_S_MAX):
            while True:
                try:
                    if (await server.http.get("/health")).status_code == 503:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0)
        server.process.terminate()
        assert await server.ended() in {0, -signal.SIGTERM}


async def test_a_missing_model_a_taken_port_and_a_strange_flag_are_sentences_with_status_1(
    tiny: Path, tmp_path: Path
) -> None:
    async with started(tmp_path / "no.gguf") as server:
        assert await server.ended() == 1
        ending = LLAMACPP.ending(server.spec, 1, (await server.said()).splitlines())
        assert "no.gguf" in ending.why
        assert "missing" in ending.why
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    assert "failed to load model" in await fails("--model", str(broken), "--port", str(free_port()))
    assert "--mlock" in await fails("--model", str(tiny), "--mlock")
    assert "no model" in await fails()


async def test_a_port_that_something_holds_is_told_as_that(tiny: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        async with started(tiny, port=holder.getsockname()[1]) as server:
            assert await server.ended() == 1
            ending = LLAMACPP.ending(server.spec, 1, (await server.said()).splitlines())
            assert ending.port_taken
            assert str(server.port) in ending.why


async def test_a_second_server_cannot_share_the_port_of_a_first(tiny: Path) -> None:
    async with started(tiny) as first:
        await first.ready()
        async with started(tiny, port=first.port) as second:
            assert await second.ended() == 1


async def test_its_version_is_read_as_an_agent_reads_it() -> None:
    async with running(("--version",), {"PATH": "/usr/bin:/bin"}) as process:
        _, said = await asyncio.wait_for(process.communicate(), LOAD_S_MAX)
        assert process.returncode == 0
    version = LLAMACPP.version(said.decode())
    assert version is not None
    assert version.startswith("xllamacpp 20")
