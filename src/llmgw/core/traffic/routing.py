"""Which of several replicas gets the next request."""

from collections.abc import Sequence


def choose(in_flight: Sequence[int], turn: int) -> int | None:
    """Return the index of the least busy; among equals the next one in turn; None if there is none.

    `turn` is the index from which equals are taken; the caller keeps the one after the last chosen.
    """
    count = len(in_flight)
    if count == 0:
        return None
    return min(range(count), key=lambda i: (in_flight[i], (i - turn) % count))
