"""Hears a daemon say that it is ready, as systemd would: the same message on a socket of ours."""

import asyncio
import os
import secrets
import socket
from typing import Final

TOKEN_BYTES: Final = 8
MESSAGE_BYTES_MAX: Final = 4096
VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""What systemd tells us and nobody below us."""


class Readiness:
    """One socket for one life of one daemon, from within the event loop."""

    def __init__(self) -> None:
        # In the abstract namespace a name is not bound to a path's 107 bytes, nor left behind.
        self._name = f"llmgw-{os.getpid()}-{secrets.token_hex(TOKEN_BYTES)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(f"\0{self._name}")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._hear)
        self.ready = asyncio.Event()

    @property
    def environment(self) -> dict[str, str]:
        """What makes the daemon speak to us."""
        return {"NOTIFY_SOCKET": f"@{self._name}"}

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _hear(self) -> None:
        try:
            message = self._socket.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return
        if b"READY=1" in message.splitlines():
            self.ready.set()
