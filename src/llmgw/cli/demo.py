"""`llmgw demo`: one small model file, a running llmgw, and an answer streamed to the terminal."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from llmgw.admin.client import AdminClient
from llmgw.admin.schema import NewKey
from llmgw.cli.ctl.keys import make
from llmgw.cli.machine import Machine, stay, up
from llmgw.cli.output import note
from llmgw.config.loader import Surroundings, load
from llmgw.config.settings import (
    ADMIN_PORT,
    AGENT_METRICS_PORT,
    AGENTS_PORT,
    GATEWAY_PORT,
    LOOPBACK,
    UpSettings,
)
from llmgw.core.errors import DependencyError, InvalidRequestError, UpstreamFailedError
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.files import make_private_folder, write_atomic

MODEL: Final = "smollm2"
QUESTION: Final = "Why is the sky blue? One sentence."
EXPECTED: Final = "scatter"
"""What a model that has learned anything says about it."""
TOKENS_MAX: Final = 120
KEY_LIVES_S: Final = 86400.0
READY_S_MAX: Final = 300.0
ANSWER_S_MAX: Final = 120.0
COUNTED_S_MAX: Final = 30.0
LOOK_S: Final = 0.2
PORTS: Final = {
    "gateway_port": GATEWAY_PORT,
    "admin_port": ADMIN_PORT,
    "agents_port": AGENTS_PORT,
    "metrics_port": AGENT_METRICS_PORT,
}


class NoAnswerError(DependencyError):
    """The model did not answer as one that works does."""

    code = "no_answer"


@dataclass(frozen=True, slots=True)
class Demo:
    """What is shown."""

    model_file: Path
    state_dir: Path
    port: int | None
    """Of the gateway; None: the usual one, or any free one where that is taken."""
    once: bool
    """Stop everything after the answer, and fail where it was none."""


def run(demo: Demo, around: Surroundings) -> None:
    """Bring everything up with the model, ask, and stay until Ctrl-C."""
    if not demo.model_file.is_file():
        raise InvalidRequestError(f"there is no model file {demo.model_file}")
    make_private_folder(demo.state_dir)
    catalog = demo.state_dir / "catalog.json"
    write_atomic(catalog, json.dumps(_catalog(demo.model_file.absolute()), indent=2).encode())
    given = {"state_dir": str(demo.state_dir), "catalog": str(catalog), **_ports(demo.port)}
    machine = Machine(load(UpSettings, overrides=given, around=around), around, READY_S_MAX)

    async def then(client: AdminClient, stop: asyncio.Event) -> None:
        made = await make(client, NewKey("demo", "demo", expires_in_s=KEY_LIVES_S))
        note(f"\n> {QUESTION}")
        answer = await _ask(machine, made.key)
        tokens = await _counted(client, made.info.id)
        note(f"({tokens} tokens counted)")
        if not demo.once:
            _say_how_to_go_on(machine, made.key)
            await stay(client)
        if EXPECTED not in answer.lower():
            raise NoAnswerError(f"the answer does not hold the word {EXPECTED!r}")
        stop.set()

    up(machine, then)


def _catalog(source: Path) -> object:
    profile = {
        "name": f"{MODEL}-demo",
        "engine": "llamacpp",
        "source": str(source),
        "context_tokens": 2048,
        "parallel_requests": 2,
        "token_probe": True,
        "drain_s_max": 10.0,
        "stop_grace_s": 10.0,
    }
    return {"models": [{"name": MODEL, "profiles": [profile]}]}


def _ports(port: int | None) -> dict[str, str]:
    """Return the usual ports, each replaced by a free one where it is taken."""
    wanted = PORTS if port is None else {**PORTS, "gateway_port": port}
    with ExitStack() as held:
        taken: dict[str, str] = {}
        for name, usual in wanted.items():
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, usual))
            except OSError:
                if name == "gateway_port" and port is not None:
                    raise InvalidRequestError(f"port {port} is taken; name another one") from None
                probe.bind((LOOPBACK, 0))
            taken[name] = str(probe.getsockname()[1])
        return taken


async def _ask(machine: Machine, key: str) -> str:
    """Ask the question as any client would, and print the answer as it comes."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": TOKENS_MAX,
        "stream": True,
    }
    pieces: list[str] = []
    async with (
        httpx.AsyncClient(timeout=ANSWER_S_MAX, trust_env=False) as http,
        http.stream(
            "POST",
            f"{machine.gateway_url}/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {key}"},
        ) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            said = (await answer.aread()).decode(errors="replace")[:500]
            raise UpstreamFailedError(f"the gateway answered {answer.status_code}: {said}")
        async for piece in _pieces(answer):
            sys.stdout.write(piece)
            sys.stdout.flush()
            pieces.append(piece)
    sys.stdout.write("\n")
    return "".join(pieces)


async def _pieces(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data: ")
        if data in {line, "[DONE]"}:
            continue
        for choice in json.loads(data).get("choices", ()):
            if text := choice.get("delta", {}).get("content"):
                yield text


async def _counted(client: AdminClient, key: str) -> int:
    """Wait until the ledger has the tokens of this key's requests."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + COUNTED_S_MAX
    while clock.monotonic_s() < deadline_s:
        for one in await client.usage(by=("key",)):
            if one.key == key and one.completion_tokens > 0:
                return one.prompt_tokens + one.completion_tokens
        await clock.sleep(LOOK_S)
    raise NoAnswerError(f"no tokens were counted within {COUNTED_S_MAX:g} s of the answer")


def _say_how_to_go_on(machine: Machine, key: str) -> None:
    note(f"""
llmgw serves {MODEL} on {machine.gateway_url}; Ctrl-C here stops everything. In another terminal:

  export LLMGW_KEY={key}
  curl {machine.gateway_url}/chat/completions -H "Authorization: Bearer $LLMGW_KEY" \\
    -H 'Content-Type: application/json' \\
    -d '{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'

  # the same with the client of OpenAI, pip install openai
  python -c 'import os, openai
  client = openai.OpenAI(base_url="{machine.gateway_url}", api_key=os.environ["LLMGW_KEY"])
  hello = [{{"role": "user", "content": "Hello!"}}]
  print(client.chat.completions.create(model="{MODEL}", messages=hello).choices[0].message.content)'

  {machine.ctl} status
  {machine.ctl} usage
""")
