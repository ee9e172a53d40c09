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
    """For people; waits go by its age (see ages.py)."""
    ready_s: float = 0.0
    """How long it had been ready."""
    ports: tuple[int, ...] = ()
    """Ports that the start found taken."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long until the next start, with the reason."""

    seconds: float
    why: str


def wait_after(failures: Sequence[Failure], policy: Restart, ago_s: float) -> Wait:
    """Return the wait that is left `ago_s` after the last of `failures`; zero when it is over.

    The delay doubles with each failure in a row, up to the policy's cap; a replica that was ready
    for `reset_after_s` begins anew.
    """
    row = failures_in_row(failures, policy)
    if row == 0:
        return Wait(0.0, "has not failed")
    delay_s = min(policy.delay_s * 2.0 ** min(row - 1, 32), policy.delay_s_max)
    times = "once" if row == 1 else f"{row} times in a row"
    return Wait(max(delay_s - ago_s, 0.0), f"failed {times}: {failures[-1].why}")


def failures_in_row(failures: Sequence[Failure], policy: Restart) -> int:
    """Count failures since the last incarnation that was ready long enough, itself included."""
    row = 0
    for failure in reversed(failures):
        row += 1
        if failure.ready_s >= policy.reset_after_s:
            break
    return row
