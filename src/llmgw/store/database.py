"""Transactions with bounded waits, and every failure of the database as a sentence."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from llmgw.core.errors import BugError
from llmgw.store.driver import WAIT_S_MAX, Driver
from llmgw.store.errors import StoreBusyError

T = TypeVar("T")

Work = Callable[[AsyncConnection], Awaitable[T]]
"""What happens in one transaction; it may be called again after one that changed nothing."""


class _LostError(Exception):
    """The connection was of no use any more, and nothing had been committed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Database:
    """Runs work in transactions: all of it happens or none."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._engines = driver.engines()

    @property
    def place(self) -> str:
        """Where the store is, for messages."""
        return self._driver.place

    async def read(self, work: Work[T]) -> T:
        """Return what `work` reads; it sees one state of the store."""
        return await self._run(self._engines.readers, work)

    async def write(self, work: Work[T]) -> T:
        """Let `work` write, alone on SQLite, and commit; raise StorageError if it cannot."""
        return await self._run(self._engines.writer, work)

    async def close(self) -> None:
        """Give all connections back."""
        await self._engines.readers.dispose()
        await self._engines.writer.dispose()

    async def _run(self, engine: AsyncEngine, work: Work[T]) -> T:
        await self._driver.vouch()
        try:
            return await self._attempt(engine, work)
        except _LostError:
            # A pooled connection outlived its server or its file; a fresh one may do.
            try:
                return await self._attempt(engine, work)
            except _LostError as again:
                raise self._driver.refusal(again.error) from again.error

    async def _attempt(self, engine: AsyncEngine, work: Work[T]) -> T:
        committing = False
        try:
            async with engine.connect() as connection:
                transaction = await connection.begin()
                result = await work(connection)
                committing = True
                await transaction.commit()
                return result
        except PoolTimeoutError as error:
            raise StoreBusyError(
                f"{self.place} had no connection free for {WAIT_S_MAX:.0f} s; it has more to do "
                "than it can, or its disk is slow"
            ) from error
        except DBAPIError as error:
            raise self._meaning(error, committing=committing) from error
        except self._driver.raw_errors as error:
            raise self._driver.refusal(error) from error

    def _meaning(self, error: DBAPIError, *, committing: bool) -> Exception:
        if isinstance(error, IntegrityError):
            rule = str(error.orig).splitlines()[0]  # PostgreSQL shows values further down
            return BugError(f"{self.place} refused what breaks its own rules: {rule}")
        if error.connection_invalidated and not committing:
            return _LostError(error)
        return self._driver.refusal(error)
