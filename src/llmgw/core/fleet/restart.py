"""When a failed replica may start anew, and why not earlier."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw.core.fleet.catalog import Restart


@dataclass(frozen=True, slots=True)
class Failure:
    """One incarnation that ended without being asked to."""

    incarnation: int
    why: str
    at_wall_s: float
    """Stored, so wall-clock; a wait made from it never exceeds the policy's cap."""
    ready_s: float = 0.0
    """How long it had been ready."""
    ports: tuple[int, ...] = ()
    """Ports that the start found taken."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long until the next start, with the reason."""

    seconds: float
    why: str


def wait_after(failures: Sequence[Failure], policy: Restart, now_wall_s: float) -> Wait:
    """Return the wait that is left after the last of `failures`; zero seconds when it is over.

    The delay doubles with each failure in a row; a replica that was ready for `reset_after_s`
    begins anew. A clock that stepped back cannot prolong a wait beyond its whole length.
    """
    row = failures_in_row(failures, policy)
    if row == 0:
        return Wait(0.0, "has not failed")
    last = failures[-1]
    delay_s = min(policy.delay_s * 2.0 ** min(row - 1, 32), policy.delay_s_max)
    left_s = min(max(last.at_wall_s + delay_s - now_wall_s, 0.0), delay_s)
    times = "once" if row == 1 else f"{row} times in a row"
    return Wait(left_s, f"failed {times}: {last.why}")


def failures_in_row(failures: Sequence[Failure], policy: Restart) -> int:
    """Count failures since the last incarnation that was ready long enough, itself included."""
    row = 0
    for failure in reversed(failures):
        row += 1
        if failure.ready_s >= policy.reset_after_s:
            break
    return row
