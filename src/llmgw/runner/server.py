"""Answers on the runner's socket: several clients at once, none of which can stall the runner.

Nothing here waits. What a client has not taken is bounded, and so is the time it may take over
it, over a request, and over doing nothing; a new client may take an idle one's place.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from llmgw.runner.fields import BrokenFileError
from llmgw.runner.logs import follow, tail
from llmgw.runner.poller import READ, WRITE, Poller
from llmgw.runner.socket import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SOCKET_FILE,
    Follow,
    Status,
    StatusReply,
    Stop,
    Tail,
    Watch,
    decode_request,
    encode_logs,
    encode_record,
    encode_refusal,
    encode_status,
)
from llmgw.runner.state import Record

CLIENTS_MAX: Final = 8
WAITERS_MAX: Final = 5
BACKLOG_MAX: Final = 128
REQUEST_S_MAX: Final = 5.0
SEND_S_MAX: Final = 5.0
IDLE_S_MAX: Final = 60.0
EVICT_S_MIN: Final = 0.5
_RECEIVE_BYTES: Final = 4096


class Desk(Protocol):
    """What the server asks of the shard."""

    def record(self) -> Record:
        """The present record, on disk or not."""
        ...

    def status(self) -> StatusReply:
        """The present record and memory."""
        ...

    def stop(self, grace_s: float | None) -> None:
        """Begin to stop; harmless when asked again."""
        ...


class _Client:
    """One connection: at most one request in work, at most one reply unsent."""

    def __init__(self, connection: socket.socket, now_s: float) -> None:
        self.connection = connection
        self.received = b""
        self.unsent = b""
        self.watches = False
        self.follows: tuple[Follow, float] | None = None
        self.last_s = now_s  # when it last did something useful
        self.ends = False  # close once all is sent

    @property
    def waits(self) -> bool:
        return self.watches or self.follows is not None

    def events(self) -> int:
        if self.unsent:
            return WRITE
        return READ if self.follows is None and not self.ends else 0

    def is_late(self, now_s: float) -> bool:
        idle_s = now_s - self.last_s
        if self.unsent:
            return idle_s > SEND_S_MAX
        if self.waits:
            return False
        return idle_s > (REQUEST_S_MAX if self.received else IDLE_S_MAX)


class Server:
    """The listening socket and its clients."""

    def __init__(
        self, base: str, poller: Poller, desk: Desk, monotonic_s: Callable[[], float]
    ) -> None:
        self._base = base
        self._poller = poller
        self._desk = desk
        self._now_s = monotonic_s
        self._clients: list[_Client] = []
        self._accepts = True
        self._accept_at_s = 0.0
        path = os.path.join(base, SOCKET_FILE)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # a killed runner's; the lock says that no other lives
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(before)
        self._listener.listen(BACKLOG_MAX)
        poller.add(self._listener.fileno(), READ, self._on_listener)

    def _on_listener(self) -> None:
        while True:
            if len(self._clients) >= CLIENTS_MAX and not self._evict():
                self._accept_when(possible=False)
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left for it
                self._accept_when(possible=False)
                return
            connection.settimeout(0)
            client = _Client(connection, self._now_s())
            self._clients.append(client)
            self._poller.add(connection.fileno(), READ, partial(self._on, client))

    def _evict(self) -> bool:
        """Close the client that has been idle for longest, if for long enough."""
        idle = [c for c in self._clients if not c.waits and not c.unsent]
        oldest = min(idle, key=lambda c: c.last_s, default=None)
        if oldest is None or self._now_s() - oldest.last_s < EVICT_S_MIN:
            return False
        self._close(oldest)
        return True

    def _accept_when(self, *, possible: bool) -> None:
        self._accept_at_s = self._now_s() + EVICT_S_MIN / 2
        if self._accepts != possible:
            self._accepts = possible
            self._poller.change(self._listener.fileno(), READ if possible else 0)

    def _on(self, client: _Client) -> None:
        if client.unsent:
            self._send(client)
        else:
            self._receive(client)
        self._work(client)

    def _receive(self, client: _Client) -> None:
        try:
            data = client.connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(client)
            return
        client.received += data

    def _work(self, client: _Client) -> None:
        """Answer what has arrived, one request after the other, while replies are taken."""
        while client in self._clients and not (client.unsent or client.ends or client.follows):
            line, newline, rest = client.received.partition(b"\n")
            if not newline and len(line) <= REQUEST_BYTES_MAX:
                break
            client.received = rest
            client.last_s = self._now_s()
            if len(line) > REQUEST_BYTES_MAX:
                self._refuse(client, f"a request has at most {REQUEST_BYTES_MAX} bytes")
            else:
                self._answer(client, line)
        if client in self._clients:
            self._poller.change(client.connection.fileno(), client.events())

    def _answer(self, client: _Client, line: bytes) -> None:
        try:
            request = decode_request(line)
            match request:
                case Status():
                    self._reply(client, encode_status(self._desk.status()))
                case Stop(grace_s):
                    self._desk.stop(grace_s)
                    self._reply(client, encode_record(self._desk.record()))
                case Tail(lines, bytes_max):
                    self._reply(client, encode_logs(tail(self._base, lines, bytes_max)))
                case Watch() | Follow() if not client.waits and not self._may_wait():
                    self._refuse(client, f"{WAITERS_MAX} clients watch or follow already")
                case Watch():
                    client.watches = True
                    self._reply(client, encode_record(self._desk.record()))
                case Follow(wait_s=wait_s):
                    client.follows = (request, self._now_s() + wait_s)
                    self._follow(client)
        except (BrokenFileError, ValueError) as fault:
            self._refuse(client, str(fault))
        except OSError as fault:
            self._refuse(client, f"the log cannot be read: {fault.strerror}")

    def _may_wait(self) -> bool:
        return sum(client.waits for client in self._clients) < WAITERS_MAX

    def _follow(self, client: _Client) -> None:
        if client.follows is None:
            return
        request, end_s = client.follows
        try:
            piece = follow(self._base, request.cursor, request.bytes_max)
        except (ValueError, OSError):
            client.follows = None
            self._refuse(client, f"there is no place {request.cursor!r} in this log")
            return
        if piece.lines or piece.lost or self._now_s() >= end_s:
            client.follows = None
            self._reply(client, encode_logs(piece))

    def _refuse(self, client: _Client, why: str) -> None:
        client.ends = True
        self._reply(client, encode_refusal(why))

    def _reply(self, client: _Client, line: bytes) -> None:
        if len(client.unsent) + len(line) > 2 * REPLY_BYTES_MAX:
            self._close(client)  # a watcher that does not read: it may come back and ask again
            return
        if not client.unsent:
            client.last_s = self._now_s()
        client.unsent += line
        self._send(client)

    def _send(self, client: _Client) -> None:
        try:
            sent = client.connection.send(client.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._close(client)
            return
        client.unsent = client.unsent[sent:]
        if sent:
            client.last_s = self._now_s()
        if client.ends and not client.unsent:
            self._close(client)

    def _close(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._poller.remove(client.connection.fileno())
            client.connection.close()
            self._accept_when(possible=True)

    def publish(self, record: Record) -> None:
        """Tell those who watch."""
        line = encode_record(record)
        for client in [c for c in self._clients if c.watches]:
            self._reply(client, line)
            self._work(client)

    def step(self, now_s: float) -> None:
        """Serve those who follow, drop those who are late, let in those who wait."""
        for client in tuple(self._clients):
            if client.follows is not None:
                self._follow(client)
                self._work(client)
            elif client.is_late(now_s):
                self._close(client)
        if not self._accepts and now_s >= self._accept_at_s:
            self._accept_when(possible=True)

    @property
    def has_unsent(self) -> bool:
        """Whether a client has not yet taken all that was said to it."""
        return any(client.unsent for client in self._clients)

    def close(self) -> None:
        """Close everything and remove the socket."""
        for client in tuple(self._clients):
            self._close(client)
        self._poller.remove(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._base, SOCKET_FILE))
