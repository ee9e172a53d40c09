"""What an engine says about its own load: requests running and waiting, from its metrics."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llmgw.agent.engine_http import Endpoint, EngineHttp, NoReplyError
from llmgw.core.fleet.catalog import EngineKind

OK: Final = 200
_LINE: Final = re.compile(rb"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)")


@dataclass(frozen=True, slots=True)
class LoadNames:
    """Metric names of one kind of engine."""

    running: str
    waiting: str


NAMES: Final[Mapping[EngineKind, LoadNames]] = {
    EngineKind.LLAMACPP: LoadNames("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    EngineKind.VLLM: LoadNames("vllm:num_requests_running", "vllm:num_requests_waiting"),
    EngineKind.SGLANG: LoadNames("sglang:num_running_reqs", "sglang:num_queue_reqs"),
}


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """None where the engine does not say: absent is not zero."""

    running: int | None = None
    waiting: int | None = None


async def scrape(http: EngineHttp, engine: Endpoint, path: str, kind: EngineKind) -> EngineLoad:
    """Ask an engine for its load; an engine that does not answer says nothing."""
    try:
        reply = await http.get(engine, path)
    except NoReplyError:
        return EngineLoad()
    return parse_load(reply.body, kind) if reply.status == OK else EngineLoad()


def parse_load(text: bytes, kind: EngineKind) -> EngineLoad:
    """Sum the figures over all of their series (one per data-parallel rank)."""
    names = NAMES[kind]
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if found := _LINE.match(line):
            name = found[1].decode()
            if name in (names.running, names.waiting):
                sums[name] = sums.get(name, 0.0) + _number(found[2])
    return EngineLoad(_whole(sums.get(names.running)), _whole(sums.get(names.waiting)))


def _number(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e9 else 0.0


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
