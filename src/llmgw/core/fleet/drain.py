"""When a replica that takes no new requests may be stopped."""

from dataclasses import dataclass

from llmgw.core.fleet.catalog import Profile
from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.replica import Seen
from llmgw.core.fleet.view import View


@dataclass(frozen=True, slots=True)
class Drained:
    """It may be stopped."""

    why: str
    cuts: int = 0
    """Requests still in flight which that ends."""


@dataclass(frozen=True, slots=True)
class Draining:
    """It must wait."""

    why: str
    left_s: float


def drained(
    intent: Intent, parts: tuple[Seen, ...], view: View, policy: Profile
) -> Drained | Draining:
    """Judge a draining replica.

    Every gateway must act on a snapshot without it and have nothing of it in flight. A silent one
    is waited for until the engine itself runs nothing, all of them until the drain's deadline.
    """
    since = (intent.replica, intent.drain_since_wall_s or 0.0)
    left_s = policy.drain_s_max - view.ages.get(since, 0.0)
    flying, waits_for = _in_flight(intent, view)
    if not waits_for:
        return Drained("nothing of it is in flight")
    running = parts[0].report.running if parts[0].heard and parts[0].report else None
    if running == 0 and all(name.endswith(_SILENT) for name in waits_for):
        return Drained("its engine runs nothing")
    if left_s <= 0:
        return Drained(
            f"the drain's {policy.drain_s_max:.0f} s are over", max(flying, running or 0)
        )
    return Draining(f"waits for {', '.join(waits_for)}", left_s)


_SILENT = " (silent)"


def _in_flight(intent: Intent, view: View) -> tuple[int, list[str]]:
    unrouted = view.unrouted.get(intent.replica)
    flying, waits_for = 0, []
    for gateway in view.gateways:
        count = gateway.in_flight.get(intent.replica, 0)
        flying += count
        if gateway.silent_s > view.rules.gateway_silent_s:
            waits_for.append(f"gateway {gateway.gateway}{_SILENT}")
        elif count:
            waits_for.append(f"{count} requests on gateway {gateway.gateway}")
        elif unrouted is None or gateway.order < unrouted:
            waits_for.append(f"gateway {gateway.gateway} to stop routing to it")
    return flying, waits_for
