"""Usage from gateways into the ledger; acknowledged when it is there, and only then.

A batch that cannot be stored is tried again until its link ends: the gateway keeps it in its
journal and sends it anew on the next link. The store counts a request once, however often it comes.
"""

import asyncio
import logging
from typing import Final

from llmgw.control.ports import GatewayLink, LedgerPort
from llmgw.core.errors import LlmgwError
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.clock import Clock, Random
from llmgw.wire.messages import UsageBatch, UsageStored

logger = logging.getLogger(__name__)

BATCHES_MAX: Final = 8
"""Of one gateway that wait to be stored; what comes beyond it is not acknowledged."""
RETRY: Final = Backoff(first_s=0.5, cap_s=30.0)


class UsageWriter:
    """Writes what all gateways bring; without a ledger nothing is taken, and journals keep it."""

    def __init__(self, ledger: LedgerPort | None, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._random = Random()
        self.records_stored = 0
        self.trouble = ""
        """Why usage cannot be stored; empty while all is well."""

    async def serve(self, link: GatewayLink, batches: asyncio.Queue[UsageBatch]) -> None:
        """Store one gateway's batches in their order until cancelled."""
        while True:
            batch = await batches.get()
            if self._ledger is not None:
                await self._store(self._ledger, link.peer.gateway, batch)
                await link.send(UsageStored(batch.batch))

    async def _store(self, ledger: LedgerPort, gateway: str, batch: UsageBatch) -> None:
        failures = 0
        while True:
            try:
                self.records_stored += await ledger.add(batch.records, gateway)
            except LlmgwError as error:
                failures += 1
                if not self.trouble:
                    logger.warning("usage of gateway %s cannot be stored: %s", gateway, error)
                self.trouble = str(error)
                await self._clock.sleep(RETRY.wait_s(failures, self._random))
            else:
                if self.trouble:
                    logger.info("usage can be stored again")
                self.trouble = ""
                return
