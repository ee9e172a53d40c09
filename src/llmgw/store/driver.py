"""What differs between SQLite and PostgreSQL, behind one small seam."""

from dataclasses import dataclass
from typing import Final, Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from llmgw.core.errors import StorageError

WAIT_S_MAX: Final = 10.0
"""How long one step of an operation may wait: for a connection, a lock, a server's answer."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Connections that write, one at a time on SQLite, and connections that read."""

    writer: AsyncEngine
    readers: AsyncEngine


class Driver(Protocol):
    """One kind of database."""

    @property
    def place(self) -> str:
        """Where the store is, without a password; for messages."""
        ...

    @property
    def raw_errors(self) -> tuple[type[Exception], ...]:
        """What the database's library raises by itself, before SQLAlchemy can wrap it."""
        ...

    async def prepare(self) -> None:
        """Make what must be there before the first connection."""
        ...

    async def vouch(self) -> None:
        """Raise StorageError where this is not the store any more that the next start will find."""
        ...

    def engines(self) -> Engines:
        """Return the two pools; nothing is opened yet."""
        ...

    def refusal(self, error: BaseException) -> StorageError:
        """Return what to say of a failure of the database."""
        ...
