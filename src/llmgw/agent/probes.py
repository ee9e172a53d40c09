"""Is this engine ready? The health path answers, the model is listed, and it is our own process.

A probe only looks. What follows from its answer is decided elsewhere, and never by the agent.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from llmgw.agent.discovery.processes import pids_of
from llmgw.agent.discovery.sockets import (
    Listener,
    Ownership,
    held_sockets,
    listeners,
    on,
    ownership,
    socket_inode,
)
from llmgw.agent.engine_http import Endpoint, EngineHttp, NoReplyError, Reply
from llmgw.core.fleet.assignment import Readiness
from llmgw.runtime.threads import ThreadPool

OK: Final = 200
UNAUTHORIZED: Final = 401
COMPLETIONS_PATH: Final = "/v1/completions"


class Answer(StrEnum):
    """What a probe found."""

    SILENT = "silent"
    """Nothing answers, or not as it should."""
    LOADING = "loading"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of one probe."""

    answer: Answer
    why: str
    stranger: bool = False
    """Something else listens on the engine's port."""


class Prober(Protocol):
    """Asks whether an engine is ready."""

    async def ask(
        self, engine: Endpoint, readiness: Readiness, sessions: Collection[int], *, first: bool
    ) -> Probe:
        """Probe once; for the `first` ready the models count too, and a token where wanted."""
        ...


class HttpProber:
    """The real one. Remembers which socket was found to be ours, so that it looks only once."""

    def __init__(self, http: EngineHttp, proc: Path, pool: ThreadPool) -> None:
        self._http = http
        self._proc = proc
        self._pool = pool
        self._found: dict[int, tuple[Path, int]] = {}
        """By port: the descriptor, as a path in /proc, and the socket's inode."""

    async def ask(
        self, engine: Endpoint, readiness: Readiness, sessions: Collection[int], *, first: bool
    ) -> Probe:
        """See Prober."""
        owner = await self._pool.run(self._owner, engine, frozenset(sessions))
        if (verdict := _not_ours(owner, engine)) is not None:
            return verdict
        try:
            return await self._questions(engine, readiness, first=first)
        except NoReplyError as error:
            return Probe(Answer.SILENT, f"it listens on port {engine.port}, but {error}")

    def forget(self, port: int) -> None:
        """Forget whose socket was on this port: its shard has ended."""
        self._found.pop(port, None)

    async def _questions(self, engine: Endpoint, readiness: Readiness, *, first: bool) -> Probe:
        health = await self._http.get(engine, readiness.health_path)
        if health.status == readiness.loading_status:
            return Probe(Answer.LOADING, "the engine says that it loads the model")
        if health.status != OK:
            return Probe(Answer.SILENT, f"{readiness.health_path} answers {health.status}")
        if not first:
            return Probe(Answer.READY, "answers")
        models = await self._http.get(engine, readiness.models_path)
        if models.status == readiness.loading_status:
            return Probe(Answer.LOADING, "the engine says that it loads the model")
        if why := _not_listed(models, readiness):
            return Probe(Answer.SILENT, why)
        if readiness.token_probe and (why := await self._token(engine, readiness)):
            return Probe(Answer.SILENT, why)
        return Probe(Answer.READY, f"answers, and serves {readiness.served_name}")

    async def _token(self, engine: Endpoint, readiness: Readiness) -> str:
        body: dict[str, object] = {
            "model": readiness.served_name,
            "prompt": "1",
            "max_tokens": 1,
        }
        reply = await self._http.post(engine, COMPLETIONS_PATH, body)
        if reply.status == OK:
            return ""
        return f"it is healthy, but its first token failed: {COMPLETIONS_PATH} says {reply.status}"

    def _owner(self, engine: Endpoint, sessions: frozenset[int]) -> Ownership:
        """Say whose process listens there; blocking."""
        if engine.port in self._found:
            path, inode = self._found[engine.port]
            if socket_inode(path) == inode:
                return Ownership.OURS
            del self._found[engine.port]
        try:
            listening = on(engine.address, engine.port, listeners(self._proc))
            if not listening:
                return Ownership.NOBODY
            if not sessions:
                return Ownership.CANNOT_TELL
            held = held_sockets(self._proc, pids_of(self._proc, sessions))
        except OSError:
            return Ownership.CANNOT_TELL
        verdict = ownership(listening, held)
        if verdict is Ownership.OURS:
            self._remember(engine.port, listening, held.where)
        return verdict

    def _remember(
        self, port: int, listening: Collection[Listener], where: Mapping[int, tuple[int, int]]
    ) -> None:
        if len(listening) == 1:
            (only,) = listening
            pid, descriptor = where[only.inode]
            path = self._proc / str(pid) / "fd" / str(descriptor)
            self._found[port] = (path, only.inode)


def _not_ours(owner: Ownership, engine: Endpoint) -> Probe | None:
    match owner:
        case Ownership.OURS:
            return None
        case Ownership.NOBODY:
            return Probe(Answer.SILENT, f"nothing listens on port {engine.port} yet")
        case Ownership.STRANGER:
            why = f"port {engine.port} is held by a process that is not this shard's"
            return Probe(Answer.SILENT, why, stranger=True)
        case Ownership.CANNOT_TELL:
            why = (
                f"cannot tell whose process listens on port {engine.port};"
                " run the agent as a user that may look into /proc/PID/fd"
            )
            return Probe(Answer.SILENT, why)


def _not_listed(models: Reply, readiness: Readiness) -> str:
    """Return why the model list does not show the model, empty if it does."""
    if models.status == UNAUTHORIZED:
        return f"{readiness.models_path} refuses this replica's key; was it started with another?"
    if models.status != OK:
        return f"{readiness.models_path} answers {models.status}"
    try:
        names = _names(json.loads(models.body))
    except (ValueError, RecursionError):
        return f"{readiness.models_path} does not answer with a model list"
    if readiness.served_name in names:
        return ""
    shown = ", ".join(sorted(names)) or "nothing"
    return f"{readiness.models_path} lists {shown}, not {readiness.served_name}"


def _names(listing: object) -> set[str]:
    if not isinstance(listing, dict) or not isinstance(data := listing.get("data"), list):
        raise ValueError("no model list")  # noqa: TRY004 - as json.loads, whatever is wrong
    names: set[str] = set()
    for item in data:
        if isinstance(item, dict):
            aliases = item.get("aliases")
            every = [item.get("id"), *(aliases if isinstance(aliases, list) else [])]
            names |= {name for name in every if isinstance(name, str)}
    return names
