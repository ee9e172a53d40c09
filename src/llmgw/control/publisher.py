"""Snapshots to gateways: whole at the start of each link, then changes; nothing while we hold.

The leader's reconciler calls `publish` after each decision. Every link has a task that compares
what its gateway was sent with what is current: a slow gateway skips revisions, never a change.
"""

import asyncio
import logging
from typing import Final

from llmgw.control.messages import GatewayAttached, GatewayLeft, GatewayTold, Published
from llmgw.control.ports import GatewayLink, GatewaysPort, Tell
from llmgw.control.routes import build_routes, next_snapshot
from llmgw.control.together import until_first
from llmgw.control.usage_writer import BATCHES_MAX, UsageWriter
from llmgw.core.errors import StorageError
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.decision import Decision
from llmgw.core.traffic.snapshot import ApiKey, Snapshot, change
from llmgw.runtime.clock import Clock
from llmgw.wire.errors import LinkLostError, UnsendableError
from llmgw.wire.messages import GatewayHello, Load, UsageBatch

logger = logging.getLogger(__name__)

LINKS_MAX: Final = 256
"""Gateways that follow at once."""


class Publisher:
    """Owns the current snapshot, and serves the links of gateways."""

    def __init__(
        self, gateways: GatewaysPort, usage: UsageWriter, tell: Tell, clock: Clock
    ) -> None:
        self._gateways = gateways
        self._usage = usage
        self._tell = tell
        self._clock = clock
        self._current: Snapshot | None = None
        self._wakes: set[asyncio.Event] = set()
        self.changes_sent = 0

    @property
    def current(self) -> Snapshot | None:
        """What gateways are to act on; None before the first decision of this lead."""
        return self._current

    def publish(
        self,
        term: int,
        catalog: Catalog,
        decision: Decision,
        keys: tuple[ApiKey, ...],
        secret: bytes | None,
    ) -> None:
        """Make this the current snapshot, if it says anything new.

        While the decision holds, routes stay as they were; before anything was published, gateways
        keep what they have.
        """
        before = self._current
        if decision.hold:
            if before is None:
                return
            routes = before.routes
        else:
            routes = build_routes(catalog, decision, secret)
        self._current = next_snapshot(before, term, routes, keys)
        if not decision.hold:
            routed = frozenset(to.replica for to in decision.routes)
            self._tell(Published(self._current.order, routed))
        if self._current is not before:
            for wake in self._wakes:
                wake.set()

    def stand_down(self) -> None:
        """Publish nothing more: somebody else leads."""
        self._current = None

    async def on_gateway(self, link: GatewayLink) -> None:
        """Serve one gateway until its link ends."""
        hello: GatewayHello = link.peer
        if len(self._wakes) >= LINKS_MAX:
            link.end(f"this control plane serves {LINKS_MAX} gateways already, its limit")
            return
        await self._note(hello.gateway)
        self._tell(GatewayAttached(link.id, hello.gateway, hello.term))
        wake = asyncio.Event()
        self._wakes.add(wake)
        batches: asyncio.Queue[UsageBatch] = asyncio.Queue(BATCHES_MAX)
        try:
            await until_first(
                self._receive(link, batches),
                self._send(link, wake),
                self._usage.serve(link, batches),
            )
        except* LinkLostError:
            pass  # said by the link itself
        finally:
            self._wakes.discard(wake)
            self._tell(GatewayLeft(link.id, link.ended_why))

    async def _note(self, gateway: str) -> None:
        try:
            await self._gateways.seen(gateway, self._clock.wall_s())
        except StorageError as error:
            # It is waited for while it is linked all the same; only a restart forgets it.
            logger.warning("gateway %s could not be noted: %s", gateway, error)

    async def _receive(self, link: GatewayLink, batches: "asyncio.Queue[UsageBatch]") -> None:
        async for message in link:
            match message:
                case Load():
                    self._tell(GatewayTold(link.id, message))
                case UsageBatch() if not batches.full():
                    batches.put_nowait(message)
                case UsageBatch():
                    logger.warning(
                        "gateway %s sends usage faster than it is stored: batch %s stays in its "
                        "journal",
                        link.peer.gateway,
                        message.batch,
                    )

    async def _send(self, link: GatewayLink, wake: asyncio.Event) -> None:
        sent: Snapshot | None = None
        while True:
            wake.clear()
            current = self._current
            if current is not None and current != sent:
                whole = sent is None or sent.term != current.term
                try:
                    await link.send(current if whole or sent is None else change(sent, current))
                except UnsendableError as error:
                    logger.warning("gateway %s cannot be told: %s", link.peer.gateway, error)
                self.changes_sent += 1
                sent = current
                continue  # it may have changed while it was sent
            await wake.wait()
