"""Who waits for a slot, and who is next: one bounded queue per model, fair between accounts."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from llmgw.core.errors import BusyError

T = TypeVar("T")


class QueueFullError(BusyError):
    """As many requests wait for the model as may."""

    code = "queue_full"


class FairQueue(Generic[T]):
    """First come, first served within an account; between accounts one each in turn."""

    def __init__(self, waiting_max: int, retry_after_s: float) -> None:
        self._waiting_max = waiting_max
        self._retry_after_s = retry_after_s
        self._accounts: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def join(self, account: str, waiter: T) -> None:
        """Wait behind the others of the account; raise QueueFullError if as many wait as may."""
        if self._count >= self._waiting_max:
            raise QueueFullError(
                f"{self._count} requests wait for this model already", self._retry_after_s
            )
        self._accounts.setdefault(account, deque()).append(waiter)
        self._count += 1

    def leave(self, account: str, waiter: T) -> None:
        """Wait no longer; no news if `next` has returned the waiter already."""
        line = self._accounts.get(account)
        if line is None or waiter not in line:
            return
        line.remove(waiter)
        self._count -= 1
        if not line:
            del self._accounts[account]

    def next(self) -> T | None:
        """Take who is next, and put the account behind the others."""
        if not self._accounts:
            return None
        account, line = next(iter(self._accounts.items()))
        waiter = line.popleft()
        self._count -= 1
        if line:
            self._accounts.move_to_end(account)
        else:
            del self._accounts[account]
        return waiter
