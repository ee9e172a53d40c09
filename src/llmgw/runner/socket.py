"""How to talk to a runner: JSON lines over the unix socket in its directory.

One request a line, one reply a line; `watch` goes on with one line per transition until the
runner ends. Paths of unix sockets have 107 bytes, so the socket is addressed through an open
directory: `/proc/self/fd/N/sock`, which asyncio takes as well:

    with open_directory(directory) as descriptor:
        await asyncio.open_unix_connection(socket_path(descriptor), limit=REPLY_BYTES_MAX)
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from llmgw.runner.fields import BrokenFileError, Fields, parse
from llmgw.runner.logs import LogPiece
from llmgw.runner.state import Record, record_document, record_of

SOCKET_FILE: Final = "sock"
REQUEST_BYTES_MAX: Final = 4 * 1024
REPLY_BYTES_MAX: Final = 256 * 1024
LOG_BYTES_MAX: Final = 80 * 1024  # three times as much in a reply, if no byte of it is text
TAIL_LINES_MAX: Final = 10_000
FOLLOW_S_MAX: Final = 30.0

__all__ = [
    "FOLLOW_S_MAX",
    "LOG_BYTES_MAX",
    "REPLY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "SOCKET_FILE",
    "BrokenFileError",
    "Client",
    "Follow",
    "LogPiece",
    "Memory",
    "RefusedError",
    "Request",
    "Status",
    "StatusReply",
    "Stop",
    "Tail",
    "Watch",
    "decode_logs",
    "decode_record",
    "decode_status",
    "encode_request",
    "open_directory",
    "socket_path",
]


class RefusedError(Exception):
    """The runner refused the request; the text is its reason."""


@dataclass(frozen=True, slots=True)
class Status:
    """The record and the memory."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The record now, and then at each transition."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the shard; asking again is harmless, and a shorter grace then counts."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines of the log."""

    lines: int = 100
    bytes_max: int = LOG_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Follow:
    """What was logged after a cursor; waits up to `wait_s` for the first line."""

    cursor: str
    bytes_max: int = LOG_BYTES_MAX
    wait_s: float = 0.0


Request = Status | Watch | Stop | Tail | Follow


@dataclass(frozen=True, slots=True)
class Memory:
    """The runner's own memory, and that of the shard's processes."""

    runner_pss_bytes: int
    runner_uss_bytes: int
    shard_rss_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class StatusReply:
    """The answer to `Status`."""

    record: Record
    memory: Memory


def encode_request(request: Request) -> bytes:
    """The line to send."""
    document: dict[str, object]
    match request:
        case Status():
            document = {"ask": "status"}
        case Watch():
            document = {"ask": "watch"}
        case Stop(grace_s):
            document = {"ask": "stop", "grace_s": grace_s}
        case Tail(lines, bytes_max):
            document = {"ask": "tail", "lines": lines, "bytes_max": bytes_max}
        case Follow(cursor, bytes_max, wait_s):
            document = {
                "ask": "follow",
                "cursor": cursor,
                "bytes_max": bytes_max,
                "wait_s": wait_s,
            }
    return json.dumps(document).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """The request in a line, its numbers cut to their bounds; BrokenFileError if it is none."""
    fields = parse(line, "the request")
    match fields.text("ask"):
        case "status":
            return Status()
        case "watch":
            return Watch()
        case "stop":
            grace_s = fields.number_or_none("grace_s")
            return Stop(None if grace_s is None else max(0.0, grace_s))
        case "tail":
            lines = fields.whole("lines")
            return Tail(max(0, min(lines, TAIL_LINES_MAX)), _log_bytes(fields))
        case "follow":
            wait_s = fields.number_or_none("wait_s") or 0.0
            bounded_s = max(0.0, min(wait_s, FOLLOW_S_MAX))
            return Follow(fields.text("cursor"), _log_bytes(fields), bounded_s)
        case other:
            raise BrokenFileError(f"the request asks {other!r}, which this runner does not know")


def _log_bytes(fields: Fields) -> int:
    wanted = fields.whole_or_none("bytes_max")
    return LOG_BYTES_MAX if wanted is None else max(0, min(wanted, LOG_BYTES_MAX))


def encode_reply(document: dict[str, object]) -> bytes:
    """The line to answer with."""
    text = json.dumps({"ok": True, **document}, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"


def encode_refusal(why: str) -> bytes:
    """The line to refuse with."""
    return json.dumps({"ok": False, "why": why}).encode() + b"\n"


def encode_logs(piece: LogPiece) -> bytes:
    """The answer to Tail and Follow."""
    document = {"lines": list(piece.lines), "cursor": piece.cursor, "lost": piece.lost}
    return encode_reply(document)


def encode_record(record: Record) -> bytes:
    """The answer to Stop, and each line of Watch."""
    return encode_reply({"record": record_document(record)})


def encode_status(status: StatusReply) -> bytes:
    """The answer to Status."""
    memory = status.memory
    return encode_reply(
        {
            "record": record_document(status.record),
            "memory": {
                "runner_pss_bytes": memory.runner_pss_bytes,
                "runner_uss_bytes": memory.runner_uss_bytes,
                "shard_rss_bytes": memory.shard_rss_bytes,
                "processes": memory.processes,
            },
        }
    )


def _reply(line: bytes) -> Fields:
    fields = parse(line, "the runner's reply")
    if not fields.flag("ok"):
        raise RefusedError(fields.text("why"))
    return fields


def _item(fields: Fields, name: str) -> Fields:
    item = fields.item(name)
    if item is None:
        raise BrokenFileError(f"{fields.where} has no {name}")
    return item


def decode_record(line: bytes) -> Record:
    """The record in a reply; RefusedError or BrokenFileError."""
    return record_of(_item(_reply(line), "record"))


def decode_status(line: bytes) -> StatusReply:
    """Record and memory in a reply; RefusedError or BrokenFileError."""
    fields = _reply(line)
    memory = _item(fields, "memory")
    return StatusReply(
        record_of(_item(fields, "record")),
        Memory(
            memory.whole("runner_pss_bytes"),
            memory.whole("runner_uss_bytes"),
            memory.whole("shard_rss_bytes"),
            memory.whole("processes"),
        ),
    )


def decode_logs(line: bytes) -> LogPiece:
    """The log lines in a reply; RefusedError or BrokenFileError."""
    fields = _reply(line)
    return LogPiece(fields.texts("lines"), fields.text("cursor"), fields.flag("lost"))


@contextlib.contextmanager
def open_directory(directory: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of the directory, to address the socket in it."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def socket_path(descriptor: int) -> str:
    """The socket's path within this process; short, however deep the directory is."""
    return f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"


class Client:
    """A blocking client; each wait for bytes lasts at most `timeout_s` (TimeoutError)."""

    def __init__(self, directory: str | os.PathLike[str], timeout_s: float = 5.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._received = b""
        try:
            with open_directory(directory) as descriptor:
                self._socket.connect(socket_path(descriptor))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """One line; EOFError when the runner has closed."""
        while b"\n" not in self._received:
            data = self._socket.recv(64 * 1024)
            if not data:
                raise EOFError("the runner has closed the connection")
            self._received += data
            if len(self._received) > REPLY_BYTES_MAX + 64 * 1024:
                raise BrokenFileError("the runner's reply is too long")
        line, _, self._received = self._received.partition(b"\n")
        return line

    def ask(self, request: Request) -> bytes:
        """Send a request and return the line that answers it."""
        self.send(encode_request(request))
        return self.receive()

    def status(self) -> StatusReply:
        """Ask for Status."""
        return decode_status(self.ask(Status()))

    def stop(self, grace_s: float | None = None) -> Record:
        """Ask for Stop."""
        return decode_record(self.ask(Stop(grace_s)))

    def tail(self, lines: int = 100) -> LogPiece:
        """Ask for Tail."""
        return decode_logs(self.ask(Tail(lines)))

    def follow(self, cursor: str, wait_s: float = 0.0) -> LogPiece:
        """Ask for Follow."""
        return decode_logs(self.ask(Follow(cursor, wait_s=wait_s)))

    def watch(self) -> Iterator[Record]:
        """Ask for Watch; ends when the runner does."""
        self.send(encode_request(Watch()))
        with contextlib.suppress(EOFError):
            while True:
                yield decode_record(self.receive())
