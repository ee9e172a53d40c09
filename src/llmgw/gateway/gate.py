"""Admission: a place at a replica at once, or a bounded and fair wait for one."""

import asyncio
from typing import Final

from llmgw.core.errors import NoCapacityError
from llmgw.gateway.options import Deadlines, Limits
from llmgw.gateway.replicas import RETRY_AFTER_S, Model, Replica, leave
from llmgw.runtime.clock import Clock

RETRY_SHARE: Final = 0.2
"""Retries per request that the budget earns: when all fails, retries must not double the load."""
RETRY_SAVINGS_MAX: Final = 20.0
TIMER_S_MIN: Final = 0.001


class RetryBudget:
    """What all requests together may spend on second tries."""

    __slots__ = ("_savings",)

    def __init__(self) -> None:
        self._savings = RETRY_SAVINGS_MAX

    def earn(self) -> None:
        """A request came."""
        self._savings = min(self._savings + RETRY_SHARE, RETRY_SAVINGS_MAX)

    def spend(self) -> bool:
        """Pay for one more try, if there is enough."""
        if self._savings < 1:
            return False
        self._savings -= 1
        return True


class Slot:
    """A place at a replica, held for one call; `leave` gives it back."""

    __slots__ = ("_gate", "_tried", "model", "replica")

    def __init__(self, gate: "Gate", model: Model, replica: Replica) -> None:
        self._gate = gate
        self._tried: list[Replica] = []
        self.model = model
        self.replica = replica

    @property
    def may_move(self) -> bool:
        """Whether another replica could take the call; the budget may still say no."""
        return len(self._tried) + 1 < min(len(self.model.replicas), self._gate.attempts_max)

    def move(self) -> bool:
        """Change to a replica that the call was not tried on; False where there is none."""
        if not self.may_move or not self._gate.budget.spend():
            return False
        now_s = self._gate.clock.monotonic_s()
        self._tried.append(self.replica)
        other = self.model.pick(now_s, not_in=self._tried)
        if other is None:
            return False
        leave(self.replica, now_s)
        self.replica = other
        return True

    def leave(self) -> None:
        """Give the place back."""
        leave(self.replica, self._gate.clock.monotonic_s())


class Gate:
    """Grants places, first to those who wait."""

    def __init__(self, deadlines: Deadlines, limits: Limits, clock: Clock) -> None:
        self._deadlines = deadlines
        self.attempts_max = limits.attempts_max
        self.budget = RetryBudget()
        self.clock = clock
        self.waiting = 0

    async def admit(self, model: Model, account: str) -> Slot:
        """Return a place, or raise NoCapacityError or QueueFullError with when to come back."""
        self.budget.earn()
        if not len(model.queue):
            replica = model.pick(self.clock.monotonic_s())
            if replica is not None:
                return Slot(self, model, replica)
        return Slot(self, model, await self._wait(model, account))

    async def _wait(self, model: Model, account: str) -> Replica:
        waiter: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        model.queue.join(account, waiter)
        self.waiting += 1
        try:
            called, _ = await asyncio.wait([waiter], timeout=self._wait_s(model))
        except asyncio.CancelledError:
            if waiter.done():  # called up and cancelled in one turn
                leave(waiter.result(), self.clock.monotonic_s())
            raise
        finally:
            self.waiting -= 1
            model.queue.leave(account, waiter)
        if not called:
            raise NoCapacityError(_why_not(model), RETRY_AFTER_S)
        return waiter.result()

    def _wait_s(self, model: Model) -> float:
        return self._deadlines.wait_s if model.replicas else self._deadlines.unready_s

    def failed(self, replica: Replica, code: str) -> None:
        """Count a failure of the engine; wake those who wait when it may be tried again."""
        now_s = self.clock.monotonic_s()
        replica.count(code)
        replica.breaker.failed(now_s)
        until_s = replica.breaker.open_until_s
        if until_s > now_s:
            self._wake_at(until_s, replica)

    def answered_badly(self, replica: Replica, code: str) -> None:
        """Count a failure that came as a whole answer: the engine lives.

        It may be the request's fault (llama.cpp answers 500 to an image that it cannot read), and
        clients send those again. So what they do may turn others to another replica, but never
        shuts the last one: an answer from there, even a bad one, is better than none.
        """
        now_s = self.clock.monotonic_s()
        if replica.has_deputies(now_s):
            self.failed(replica, code)
            return
        replica.count(code)
        replica.breaker.succeeded()

    def _wake_at(self, until_s: float, replica: Replica) -> None:
        """Wake who waits for the replica, unless its breaker has been moved meanwhile."""
        left_s = until_s - self.clock.monotonic_s()
        if left_s > 0:  # again, where a timer came too early: uvloop's do, by up to a millisecond
            wait_s = max(left_s, TIMER_S_MIN)
            asyncio.get_running_loop().call_later(wait_s, self._wake_at, until_s, replica)
        elif replica.breaker.open_until_s == until_s:
            now_s = self.clock.monotonic_s()
            for model in replica.models:
                model.wake(now_s)


def _why_not(model: Model) -> str:
    name = model.route.name
    if not model.replicas:
        return f"no replica of {name} is ready" + (
            f": {model.route.why}" if model.route.why else ""
        )
    return f"all {len(model.replicas)} replicas of {name} are busy or failing"
