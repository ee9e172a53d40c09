"""One record per call: opened when the caller is known, closed exactly once."""

from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from llmgw.core.errors import BusyError, LlmgwError, StorageError, UserError
from llmgw.core.traffic.usage import Ending
from llmgw.gateway.entry import Entry
from llmgw.gateway.journal import Journal
from llmgw.gateway.ports import Caller, Client, Endpoint
from llmgw.gateway.render import status_of
from llmgw.runtime.clock import Clock

CLIENT_LEFT: Final = 499
OUR_FAULT: Final = 500
STOPPED: Final = 503
_REFUSALS: Final = (UserError, BusyError, StorageError)


@dataclass(slots=True)
class JournalLedger:
    """Opens and closes records in the journal, and shows closed ones to `seen`."""

    journal: Journal
    clock: Clock
    life: str
    """Unique to this life of the gateway: the first part of each request's id."""
    seen: Callable[[Entry], None]
    _count: int = 0

    def entry(self, caller: Caller, endpoint: Endpoint, client: Client) -> "Opened":
        """See Ledger."""
        self._count += 1
        entry = Entry(
            request=f"{self.life}-{self._count:x}",
            opened_wall_s=self.clock.wall_s(),
            key=caller.key,
            account=caller.account,
            path=endpoint.path,
        )
        self.journal.open(entry)
        return Opened(self, entry, client)

    def note(self, entry: Entry) -> None:
        """See Ledger."""
        self.journal.touch(entry)


class Opened:
    """An open record; leaving the block closes it with how the call ended."""

    __slots__ = ("_client", "_entry", "_ledger")

    def __init__(self, ledger: JournalLedger, entry: Entry, client: Client) -> None:
        self._ledger = ledger
        self._entry = entry
        self._client = client

    def __enter__(self) -> Entry:
        return self._entry

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the record; a failure that nobody foresaw is ours, not the client's."""
        entry = self._entry
        entry.duration_s = round(self._ledger.clock.monotonic_s() - self._client.since_s, 6)
        if error is not None:
            entry.ending, entry.status = self._how(error)
        elif entry.ending is Ending.UNKNOWN:
            entry.ending = Ending.ANSWERED
        if entry.ending is Ending.REFUSED:
            entry.took_nothing()
        self._ledger.journal.close(entry)
        self._ledger.seen(entry)

    def _how(self, error: BaseException) -> tuple[Ending, int]:
        if isinstance(error, CancelledError):
            if self._client.gone:
                return Ending.CLIENT_LEFT, CLIENT_LEFT
            return Ending.OUR_FAULT, self._entry.status or STOPPED
        if isinstance(error, _REFUSALS):
            return Ending.REFUSED, status_of(error)
        if isinstance(error, LlmgwError):
            return Ending.ENGINE_FAILED, self._entry.status or status_of(error)
        return Ending.OUR_FAULT, self._entry.status or OUR_FAULT
