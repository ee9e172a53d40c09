"""Waits until the head listens: one connection attempt at a time, none of which blocks."""

import contextlib
import errno
import os
import socket
from enum import Enum
from typing import Final

from llmgw.runner.launch import Rendezvous

ATTEMPT_S_MAX: Final = 2.0
PAUSE_S: Final = 0.2


class Waiting(Enum):
    """What a look at the rendezvous says."""

    YET = "yet"
    LISTENS = "listens"
    TOO_LATE = "too late"


class RendezvousWait:
    """One bounded wait; `step` is called again and again and never blocks."""

    def __init__(self, rendezvous: Rendezvous, now_s: float) -> None:
        self._target = rendezvous
        self._end_s = now_s + rendezvous.timeout_s
        self._next_s = now_s
        self._attempt: socket.socket | None = None
        self._last = "no attempt was made"

    @property
    def address(self) -> str:
        """Where the head should listen."""
        return f"{self._target.host}:{self._target.port}"

    @property
    def failure(self) -> str:
        """The sentence for a wait that was too long."""
        return (
            f"nothing listened on the rendezvous {self.address} within "
            f"{self._target.timeout_s:g} s (last attempt: {self._last}); is the head alive, and "
            "may this node reach that port?"
        )

    def step(self, now_s: float) -> Waiting:
        """Look once."""
        if self._attempt is None:
            if now_s >= self._end_s:
                return Waiting.TOO_LATE
            if now_s < self._next_s:
                return Waiting.YET
            self._begin(now_s)
        attempt = self._attempt
        if attempt is None:
            return Waiting.YET
        number = attempt.connect_ex(self._address())
        if number in (0, errno.EISCONN):
            if _is_to_itself(attempt):
                self._fail("nothing listens", now_s)
                return Waiting.YET
            self.close()
            return Waiting.LISTENS
        if number in (errno.EINPROGRESS, errno.EALREADY):
            if now_s >= min(self._next_s + ATTEMPT_S_MAX, self._end_s):
                self._fail("no answer", now_s)
            return Waiting.YET
        self._fail(os.strerror(number), now_s)
        return Waiting.YET

    def _begin(self, now_s: float) -> None:
        family = socket.AF_INET6 if ":" in self._target.host else socket.AF_INET
        self._next_s = now_s
        try:
            self._attempt = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as fault:
            self._fail(fault.strerror or "no socket", now_s)

    def _address(self) -> tuple[str, int]:
        return (self._target.host, self._target.port)

    def _fail(self, why: str, now_s: float) -> None:
        self.close()
        self._last = why
        self._next_s = now_s + PAUSE_S

    def close(self) -> None:
        """Give the socket back."""
        if self._attempt is not None:
            with contextlib.suppress(OSError):
                self._attempt.close()
            self._attempt = None


def _is_to_itself(connection: socket.socket) -> bool:
    """Whether the kernel happened to choose the port itself as our end (or it is gone again)."""
    try:
        return bool(connection.getsockname() == connection.getpeername())
    except OSError:
        return True
