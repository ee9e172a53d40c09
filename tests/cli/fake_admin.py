"""A control plane's admin API as a script: canned answers over real HTTP, and what was asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from llmgw.admin.schema import (
    BASE,
    ErrorBody,
    ErrorInfo,
    ModelInfo,
    ProfileInfo,
    ReplicaInfo,
    ShardInfo,
    Status,
)

KEY = "sk-admin-of-the-fake-control-plane"


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes


@dataclass
class FakeAdmin:
    """Answers by method and path; of several answers each is given once, the last for ever."""

    url: str
    key_file: Path
    answers: dict[tuple[str, str], list[tuple[int, bytes]]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def on(self, method: str, path: str, *values: object, status: int = 200) -> None:
        """Say what is answered."""
        self.answers[method, BASE + path] = [
            (status, value if isinstance(value, bytes) else msgspec.json.encode(value))
            for value in values
        ]

    def refuse(self, method: str, path: str, status: int, code: str, message: str) -> None:
        """Say that something is refused."""
        self.on(method, path, ErrorBody(ErrorInfo(code, message)), status=status)

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        """Return the next answer."""
        waiting = self.answers.get((method, path))
        if not waiting:
            body = ErrorBody(ErrorInfo("not_found", f"nothing is set for {method} {path}"))
            return 404, msgspec.json.encode(body)
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def bodies(self, method: str, path: str) -> list[bytes]:
        """Return what was sent."""
        return [a.body for a in self.asked if (a.method, a.path) == (method, BASE + path)]


class _Handler(BaseHTTPRequestHandler):
    fake: FakeAdmin

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        parts = urlsplit(self.path)
        self.fake.asked.append(Asked(self.command, parts.path, parse_qs(parts.query), body))
        if self.headers.get("Authorization") == f"Bearer {KEY}":
            status, answer = self.fake.answer(self.command, parts.path)
        else:
            refused = ErrorBody(ErrorInfo("invalid_api_key", "that is not the admin key"))
            status, answer = 401, msgspec.json.encode(refused)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 -- names of the standard library

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def fake_admin(folder: Path) -> Iterator[FakeAdmin]:
    """Run one while the block does."""
    key_file = folder / "admin.key"
    key_file.write_text(f"{KEY}\n")

    class Handler(_Handler):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake = FakeAdmin(f"http://127.0.0.1:{server.server_port}", key_file)
        Handler.fake = fake
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


def status(revision: int = 3, **fields: object) -> Status:
    """Return the status of a control plane that leads."""
    given: dict[str, object] = {"nodes": 1, "nodes_heard": 1, "snapshot": (2, 7), **fields}
    return Status("0.1.0", True, 2, "/var/lib/llmgw.db", revision, **given)  # type: ignore[arg-type]


def replica(phase: str = "ready", **fields: object) -> ReplicaInfo:
    """Return a replica of one shard."""
    last = "2026-12-01T14:09:29.123Z llama-server| its last words"
    shard = ShardInfo("k3v9qd2m7a.1.0", "gpu-1", phase, "says so", "10.0.0.1", 18100, last_log=last)
    given: dict[str, object] = {"nodes": ("gpu-1",), "shards": (shard,), **fields}
    return ReplicaInfo("k3v9qd2m7a", "m", "m-cpu", 1, phase, "says so", "run", **given)  # type: ignore[arg-type]


def model(ready: int = 1, replicas: int = 1, why: str = "") -> ModelInfo:
    """Return a model with one profile."""
    return ModelInfo("m", ("alias",), (ProfileInfo("m-cpu", "llamacpp", replicas, ready, why),))
