"""How long ago stored moments were, by the monotonic clock.

A failure and the start of a drain are stored as wall-clock times. Each is anchored to the monotonic
clock when it is first seen, so a wall clock that steps later neither prolongs nor cuts a wait.
"""

from collections.abc import Iterable, Mapping

from llmgw.core.fleet.intent import Intent
from llmgw.core.ids import ReplicaId

Moment = tuple[ReplicaId, float]
"""A stored wall-clock time, and whose it is."""


class Ages:
    """The anchors; kept by the owner of the fleet's state for as long as it leads."""

    def __init__(self) -> None:
        self._anchors: dict[Moment, float] = {}

    def of(
        self, intents: Iterable[Intent], monotonic_s: float, wall_s: float
    ) -> Mapping[Moment, float]:
        """Return the age in seconds of every moment in the intents; forget all others."""
        moments = [moment for intent in intents for moment in _moments(intent)]
        self._anchors = {
            moment: self._anchors.get(moment, monotonic_s - max(wall_s - moment[1], 0.0))
            for moment in moments
        }
        return {moment: monotonic_s - anchor for moment, anchor in self._anchors.items()}


def _moments(intent: Intent) -> list[Moment]:
    times = [intent.failures[-1].at_wall_s] if intent.failures else []
    if intent.drain_since_wall_s is not None:
        times.append(intent.drain_since_wall_s)
    return [(intent.replica, time) for time in times]
