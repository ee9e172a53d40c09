"""What the pipeline needs from the rest of the gateway, one protocol per step."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from llmgw.gateway.entry import Entry


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and for which models."""

    key: str
    """The id of the API key, never the key."""
    account: str
    models: frozenset[str] | None = None
    """None means all."""

    def covers(self, name: str, named: str) -> bool:
        """Whether the key covers the model `name`, which the client called `named`."""
        return self.models is None or name in self.models or named in self.models


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One kind of call."""

    path: str
    request_line: bytes
    streams: bool = True


class Request(Protocol):
    """What a client sent; which server read it makes no difference to the pipeline."""

    def header(self, name: str) -> str | None:
        """Return a header's value; names are compared without case."""
        ...

    async def body(self) -> bytes:
        """Return the whole body; raise BodyTooLargeError or MalformedCallError."""
        ...


class Client(Protocol):
    """The one who asked, at the other end of the connection."""

    @property
    def since_s(self) -> float:
        """When its request came, by the monotonic clock."""
        ...

    @property
    def started(self) -> bool:
        """Whether a byte of an answer has been sent."""
        ...

    @property
    def chunks(self) -> bool:
        """Whether it understands chunked bodies (HTTP/1.1)."""
        ...

    @property
    def keeps_alive(self) -> bool:
        """Whether it wants to go on with this connection."""
        ...

    @property
    def gone(self) -> bool:
        """Whether it has left."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether it takes less than it is sent: wait for `drained` before sending more."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    async def drained(self) -> None:
        """Return when there is room again."""
        ...

    def close_after_this(self) -> None:
        """The connection cannot go on: what was sent last has no end, or the end is its end."""
        ...

    def abort(self) -> None:
        """Break the connection, so that what it got cannot be taken for a whole answer."""
        ...


class Keyring(Protocol):
    """Identify callers from memory."""

    def identify(self, request: Request) -> Caller:
        """Return the caller or raise NotAuthenticatedError."""
        ...


class Ledger(Protocol):
    """What was consumed."""

    def entry(
        self, caller: Caller, endpoint: Endpoint, client: Client
    ) -> AbstractContextManager[Entry]:
        """Open a record, or raise StorageError; on leaving, close it once with how it ended."""
        ...

    def note(self, entry: Entry) -> None:
        """What would count if the gateway died now has changed: write it down."""
        ...
