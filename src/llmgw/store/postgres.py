"""PostgreSQL as a store: several control planes share it."""

from typing import TYPE_CHECKING, Final

import asyncpg
from sqlalchemy import URL, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from llmgw.core.errors import StorageError
from llmgw.store.driver import WAIT_S_MAX, Engines
from llmgw.store.errors import (
    StoreBusyError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import ExceptionContext

CONNECTIONS_MAX: Final = 8
CONNECT_S_MAX: Final = 5.0

READ_ONLY: Final = "25006"
LOCK_NOT_AVAILABLE: Final = "55P03"
OUT_OF_RESOURCES: Final = "53"


class PostgresDriver:
    """A store on a server, or on several of which one takes writes."""

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+asyncpg")

    @property
    def place(self) -> str:
        """See Driver."""
        return self._url.set(drivername="postgresql").render_as_string(hide_password=True)

    @property
    def raw_errors(self) -> tuple[type[Exception], ...]:
        """See Driver; an OSError is what refuses or times out while connecting."""
        return (
            OSError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        )

    async def prepare(self) -> None:
        """Nothing: an operator makes the database."""

    async def vouch(self) -> None:
        """Nothing: the server answers for what it commits."""

    def engines(self) -> Engines:
        """See Driver."""
        wait_ms = str(round(WAIT_S_MAX * 1000))
        engine = create_async_engine(
            self._url,
            pool_size=CONNECTIONS_MAX,
            max_overflow=0,
            pool_timeout=WAIT_S_MAX,
            hide_parameters=True,  # an error's text may reach a log, the secret may not
            connect_args={
                "timeout": CONNECT_S_MAX,
                "command_timeout": WAIT_S_MAX,
                # After a failover the old primary still answers, but takes no writes.
                "target_session_attrs": "read-write",
                "server_settings": {
                    "application_name": "llmgw",
                    "lock_timeout": wait_ms,
                    "idle_in_transaction_session_timeout": wait_ms,
                },
            },
        )
        event.listen(engine.sync_engine, "handle_error", _leave_demoted)
        return Engines(writer=engine, readers=engine)

    def refusal(self, error: BaseException) -> StorageError:
        """See Driver."""
        state = _state(error)
        if state == READ_ONLY or _no_server_fits(error):
            return StoreReadOnlyError(
                f"the server at {self.place} takes no writes (a standby, or set read-only); name "
                "the primary, or all servers, in the store's URL"
            )
        if state == LOCK_NOT_AVAILABLE:
            return StoreBusyError(
                f"something kept a table of {self.place} locked for more than {WAIT_S_MAX:.0f} s; "
                "look into pg_locks"
            )
        if state.startswith(OUT_OF_RESOURCES):
            return StoreFullError(
                f"the server at {self.place} has run out of something ({_text(error)}); give it "
                "disk space or connections, llmgw goes on by itself"
            )
        return StoreUnreachableError(
            f"cannot use {self.place} ({_text(error)}); see to the server and the way to it, llmgw "
            "tries again by itself"
        )


def _leave_demoted(context: "ExceptionContext") -> None:
    if _state(context.original_exception) == READ_ONLY:
        context.is_disconnect = True


def _state(error: BaseException | None) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None)
    return state if isinstance(state, str) else ""


def _no_server_fits(error: BaseException) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    mismatch = asyncpg.exceptions.TargetServerAttributeNotMatched
    return isinstance(cause, mismatch) or isinstance(getattr(cause, "__cause__", None), mismatch)


def _text(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__
