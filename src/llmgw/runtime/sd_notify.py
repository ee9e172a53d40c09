"""Tells systemd that a daemon is ready, is alive, stops; does nothing where there is no systemd."""

import logging
import socket
from collections.abc import Mapping
from typing import Final

from llmgw.runtime.clock import Clock

logger = logging.getLogger(__name__)

STATUS_CHARS_MAX: Final = 200


class SystemdNotifier:
    """Sends to the socket that NOTIFY_SOCKET names; a failure is logged once, never raised."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._failed = False
        timeout_us = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s: float | None = int(timeout_us) / 1e6 if timeout_us.isdecimal() else None

    def ready(self, status: str) -> None:
        """Say that start-up is over; `status` is what `systemctl status` shows."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """Change what `systemctl status` shows."""
        self._send(f"STATUS={_one_line(status)}")

    def stopping(self) -> None:
        """Say that the daemon stops."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as peer:
                peer.connect(self._address)
                peer.send(message.encode())
        except ConnectionRefusedError:
            logger.debug("nobody listens any more to whether this daemon is ready")
        except OSError as error:
            if not self._failed:
                logger.warning("cannot notify systemd at %r: %s", self._address, error)
            self._failed = True


class Watchdog:
    """A service that feeds systemd's watchdog from the event loop: a stuck loop gets restarted."""

    name = "watchdog"

    def __init__(self, notifier: SystemdNotifier, clock: Clock) -> None:
        self._notifier = notifier
        self._clock = clock

    async def run(self) -> None:
        """Feed at half the time that systemd waits."""
        period_s = (self._notifier.watchdog_s or 60.0) / 2
        while True:
            self._notifier.alive()
            await self._clock.sleep(period_s)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:STATUS_CHARS_MAX]
