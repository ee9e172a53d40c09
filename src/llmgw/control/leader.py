"""Takes the lead through the store before anything is decided, and stands down when it is lost."""

import logging
from collections.abc import Callable
from typing import Final

from llmgw.control.ports import LeadPort, StorePort
from llmgw.core.errors import DependencyError
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.clock import Clock, Random

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(first_s=0.5, cap_s=10.0)


class Leader:
    """A service: waits for the lead, holds it, and begins anew when it is gone."""

    name = "leader"

    def __init__(
        self, store: StorePort, holder: str, on_change: Callable[[], None], clock: Clock
    ) -> None:
        self._store = store
        self._holder = holder
        self._on_change = on_change
        self._clock = clock
        self._random = Random()
        self._lead: LeadPort | None = None
        self.trouble = ""
        """Why the lead cannot be taken; empty while all is well."""

    @property
    def lead(self) -> LeadPort | None:
        """The lead while this control plane has it."""
        return self._lead if self._lead is not None and not self._lead.lost.is_set() else None

    @property
    def term(self) -> int:
        """The term under which this control plane leads; 0 while it does not."""
        lead = self.lead
        return lead.term if lead is not None else 0

    def stand_down(self) -> None:
        """Give the lead up: something has shown that it is somebody else's."""
        if self._lead is not None:
            self._lead.lost.set()

    async def run(self) -> None:
        """Take the lead, again and again, until cancelled."""
        failures = 0
        while True:
            try:
                await self._lead_once()
                failures = 0
            except DependencyError as error:
                failures += 1
                if failures == 1:
                    logger.warning("cannot take or keep the lead: %s", error)
                self.trouble = str(error)
            await self._clock.sleep(RETRY.wait_s(failures, self._random))

    async def _lead_once(self) -> None:
        async with self._store.lead(self._holder) as lead:
            self._lead, self.trouble = lead, ""
            logger.info("leads with term %s", lead.term)
            self._on_change()
            try:
                await lead.keep()
            finally:
                self._lead = None
                self._on_change()
        logger.warning("does not lead any more; standing by")
