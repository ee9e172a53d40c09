"""Tells whoever sends reports that something changed, and remembers what happened."""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from llmgw.core.fleet.report import Event
from llmgw.runtime.clock import Clock

logger = logging.getLogger(__name__)

EVENTS_KEPT: Final = 64
_MS_PER_S: Final = 1000


class Pulse:
    """One beat wakes all who listen; how often it beats between two looks does not matter."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()

    def listen(self) -> asyncio.Event:
        """Return an event that every beat sets; give it back with `leave`."""
        event = asyncio.Event()
        self._listeners.add(event)
        return event

    def leave(self, event: asyncio.Event) -> None:
        """Stop listening."""
        self._listeners.discard(event)

    def beat(self) -> None:
        """Something changed."""
        for event in self._listeners:
            event.set()


@dataclass(frozen=True, slots=True)
class _Happened:
    event: Event
    at_s: float


class Events:
    """The last things that happened here, for logs and reports."""

    def __init__(self, clock: Clock, pulse: Pulse) -> None:
        self._clock = clock
        self._pulse = pulse
        # Numbers go on growing over restarts, so that a new agent's first is not taken for old.
        self._sequence = int(clock.wall_s() * _MS_PER_S)
        self._kept: deque[_Happened] = deque(maxlen=EVENTS_KEPT)

    def say(self, subject: str, what: str) -> None:
        """Keep, log and report that something happened."""
        logger.warning("%s: %s", subject, what)
        self._sequence += 1
        event = Event(subject, what, sequence=self._sequence)
        self._kept.append(_Happened(event, self._clock.monotonic_s()))
        self._pulse.beat()

    def recent(self) -> tuple[Event, ...]:
        """Return what is kept, oldest first, with its age now."""
        now_s = self._clock.monotonic_s()
        return tuple(
            Event(h.event.subject, h.event.what, now_s - h.at_s, h.event.sequence)
            for h in self._kept
        )
