"""Waits for descriptors: each has one callback, called with the events that poll reports."""

import select
from collections.abc import Callable
from typing import Final

READ: Final = select.POLLIN
WRITE: Final = select.POLLOUT

Callback = Callable[[], None]


class Poller:
    """A thin poll(2) with callbacks."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callback] = {}

    def add(self, descriptor: int, events: int, callback: Callback) -> None:
        """Watch a descriptor; hang-ups and errors are always reported."""
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, events)

    def change(self, descriptor: int, events: int) -> None:
        """Watch the same descriptor for other events."""
        self._poll.modify(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """Stop watching; before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def wait(self, timeout_s: float) -> None:
        """Call back what is ready, or return after `timeout_s`."""
        for descriptor, _ in self._poll.poll(max(0.0, timeout_s) * 1000):
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()
