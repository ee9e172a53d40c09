"""The lead: at most one control plane decides. Taking it raises the term in the store.

A lead may be lost at any moment without its holder noticing, so it only saves work and quarrels.
What makes it safe is the term: every write of a leader is conditional on it, agents refuse lower
ones.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from llmgw.runtime.clock import Clock
from llmgw.store import term as terms
from llmgw.store.database import Database
from llmgw.store.errors import LeadHeldError, StaleTermError

POLL_S: Final = 0.5
"""How often a standby looks whether the lead is free."""

Waiting = Callable[[str], None]
"""Told once, with who leads, when the wait for the lead begins."""


class Grip(Protocol):
    """What holds a lead: a lock, or a row that is renewed."""

    async def rest(self) -> None:
        """Sleep until it is time to see to it again."""
        ...

    async def holds(self, term: int) -> bool:
        """Renew it where that is needed; False if the lead is lost."""
        ...


class Lead:
    """The lead while it lasts. Someone has to run `keep`, or it runs out unnoticed."""

    def __init__(self, database: Database, term: int, holder: str, grip: Grip) -> None:
        self._database = database
        self._term = term
        self._holder = holder
        self._grip = grip
        # A look at the term while it is being raised would take the new one for somebody else's.
        self._looking = asyncio.Lock()
        self.lost = asyncio.Event()

    @property
    def term(self) -> int:
        """What the leader's writes are conditional on."""
        return self._term

    async def keep(self) -> None:
        """Hold the lead; return when it is lost, with `lost` set."""
        while not self.lost.is_set():
            await self._grip.rest()
            async with self._looking:
                if not await self._grip.holds(self._term):
                    self.lost.set()

    async def raise_past(self, term: int) -> int:
        """Raise the own term above one that was heard of, and return it.

        Raises StaleTermError, with `lost` set, if the lead is somebody else's already.
        """
        async with self._looking:
            old, new = self._term, max(term, self._term) + 1

            async def work(connection: AsyncConnection) -> int:
                if await terms.move(connection, old, new, self._holder):
                    return new
                return await terms.current(connection)

            found = await self._database.write(work)
            if found != new:
                self.lost.set()
                raise StaleTermError(old, found)
            self._term = new
            return new


class Lease(Protocol):
    """A way to take the lead."""

    def hold(
        self, holder: str, wait_s: float | None, on_wait: Waiting
    ) -> AbstractAsyncContextManager[Lead]:
        """Take the lead, after whoever has it, and give it back at the end.

        Raises LeadHeldError when it is not free within `wait_s`; None means to stand by for as
        long as it takes.
        """
        ...

    async def leader(self) -> str:
        """Return who says that it leads; empty if nobody does."""
        ...


class Patience:
    """A standby's wait: tells once who is in the way, and ends."""

    def __init__(self, clock: Clock, place: str, wait_s: float | None, on_wait: Waiting) -> None:
        self._clock = clock
        self._place = place
        self._wait_s = wait_s
        self._since_s = clock.monotonic_s()
        self._on_wait = on_wait
        self._told = False

    async def wait(self, holder: str) -> None:
        """Sleep until it is time to look again."""
        leader = holder or "a control plane that does not say who it is"
        if not self._told:
            self._told = True
            self._on_wait(f"{leader} leads on {self._place}; standing by")
        waited_s = self._clock.monotonic_s() - self._since_s
        if self._wait_s is not None and waited_s >= self._wait_s:
            raise LeadHeldError(
                f"{leader} leads on {self._place} and has not stopped for {self._wait_s:g} s; stop "
                "it, or give this control plane a store of its own"
            )
        await self._clock.sleep(POLL_S)
