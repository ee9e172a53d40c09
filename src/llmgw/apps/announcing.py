"""Tells systemd when a daemon is ready and when it stops."""

import asyncio
from collections.abc import Awaitable, Callable

from llmgw.runtime.sd_notify import SystemdNotifier


class Announcing:
    """A service, the last to start: says READY once what it waits for returns its status line."""

    name = "announcing"

    def __init__(self, notifier: SystemdNotifier, ready: Callable[[], Awaitable[str]]) -> None:
        self._notifier = notifier
        self._ready = ready

    async def run(self) -> None:
        """Announce, and stay until cancelled, which is where the daemon's end begins."""
        try:
            self._notifier.ready(await self._ready())
            await asyncio.Event().wait()
        finally:
            self._notifier.stopping()
