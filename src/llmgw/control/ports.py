"""What the control plane needs of its store and its links, so that each can be another thing.

The store is SQLite or PostgreSQL (llmgw.store) or a catalog file (memory_store); a gateway's link
is a gRPC stream or a pair of queues inside one process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from llmgw.control.messages import Message
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.intent import Intent
from llmgw.core.ids import LinkId, NodeId, ReplicaId
from llmgw.core.traffic.snapshot import ApiKey
from llmgw.core.traffic.usage import Usage
from llmgw.store.events import NewEvent, StoredEvent
from llmgw.store.gateways import Gateway
from llmgw.store.keys import KeyRecord
from llmgw.store.nodes import Node, Refused
from llmgw.store.placements import Placed
from llmgw.store.usage import By, Total
from llmgw.wire.messages import AgentDown, AgentUp, GatewayDown, GatewayHello, GatewayUp, Hello

Tell = Callable[[Message], None]
"""Tells the owner of the fleet's state, and wakes whoever decides."""

Entropy = Callable[[int], bytes]
"""So many random bytes, fit for secrets."""


class CatalogPort(Protocol):
    """See store.catalog.Catalogs."""

    async def current(self) -> Catalog:
        """Return the newest."""
        ...

    async def save(self, catalog: Catalog, base_revision: int | None, at_wall_s: float) -> Catalog:
        """Make it the newest; raise ConflictError where the base is not."""
        ...


class PlacementsPort(Protocol):
    """See store.placements.Placements."""

    async def all(self) -> Placed:
        """Return every intent."""
        ...

    async def apply(
        self,
        term: int,
        saves: Iterable[Intent] = (),
        forgets: Iterable[ReplicaId] = (),
        events: Iterable[NewEvent] = (),
    ) -> None:
        """Do all of it or nothing; raise StaleTermError for an old term."""
        ...


class KeysPort(Protocol):
    """See store.keys.Keys."""

    async def create(self, key: ApiKey, name: str, shown: str, at_wall_s: float) -> KeyRecord:
        """Store a new key."""
        ...

    async def revoke(self, id_: str, at_wall_s: float) -> KeyRecord:
        """End a key for good."""
        ...

    async def all(self) -> tuple[KeyRecord, ...]:
        """Return every key, revoked ones too."""
        ...


class LedgerPort(Protocol):
    """See store.usage.Ledger."""

    async def add(self, records: Sequence[Usage], gateway: str) -> int:
        """Book records, each once; return how many were new."""
        ...

    async def totals(
        self, since_wall_s: float, until_wall_s: float, by: Sequence[By] = ()
    ) -> tuple[Total, ...]:
        """Sum up."""
        ...


class EventsPort(Protocol):
    """See store.events.Events."""

    async def add(self, new: Iterable[NewEvent]) -> None:
        """Store events, repeated ones once."""
        ...

    async def read(
        self, after: int | None = None, limit: int = 100, subject: str | None = None
    ) -> tuple[StoredEvent, ...]:
        """Return events after an id, or the newest."""
        ...


class NodesPort(Protocol):
    """See store.nodes.Nodes."""

    async def seen(self, node: NodeId, name: str, machine: str, at_wall_s: float) -> Node | Refused:
        """Let a node in, or say why not."""
        ...

    async def all(self) -> tuple[Node, ...]:
        """Return those that belong."""
        ...

    async def remove(self, node: NodeId) -> None:
        """Let one belong no more."""
        ...


class GatewaysPort(Protocol):
    """See store.gateways.Gateways."""

    async def remove(self, gateway: str) -> None:
        """Let one belong no more."""
        ...

    async def seen(self, gateway: str, at_wall_s: float) -> None:
        """Note a gateway."""
        ...

    async def all(self) -> tuple[Gateway, ...]:
        """Return those that belong."""
        ...


class IdentityPort(Protocol):
    """See store.identity.Identity."""

    async def store_id(self) -> str:
        """Return what tells this store from others."""
        ...

    async def secret(self) -> bytes | None:
        """Return what engine keys are derived from; None where there is no store."""
        ...


class LeadPort(Protocol):
    """See store.lease.Lead."""

    @property
    def term(self) -> int:
        """What a leader's writes are conditional on."""
        ...

    @property
    def lost(self) -> asyncio.Event:
        """Set when somebody else leads."""
        ...

    async def keep(self) -> None:
        """Hold the lead; return when it is lost."""
        ...

    async def raise_past(self, term: int) -> int:
        """Raise the own term above one that was heard of."""
        ...


class StorePort(Protocol):
    """Everything that is stored, by aggregate."""

    @property
    def trouble(self) -> str:
        """Why something else is served than what was last written down; empty while all is well."""
        ...

    @property
    def catalog(self) -> CatalogPort:
        """What is wanted."""
        ...

    @property
    def placements(self) -> PlacementsPort:
        """What is wanted of each replica."""
        ...

    @property
    def keys(self) -> KeysPort:
        """What proves callers."""
        ...

    @property
    def usage(self) -> LedgerPort | None:
        """None where nothing is stored: then the fleet is the only memory, and gateways keep it."""
        ...

    @property
    def events(self) -> EventsPort:
        """What happened."""
        ...

    @property
    def nodes(self) -> NodesPort:
        """Which nodes belong."""
        ...

    @property
    def gateways(self) -> GatewaysPort:
        """Which gateways belong."""
        ...

    @property
    def identity(self) -> IdentityPort:
        """Which store it is."""
        ...

    def lead(self, holder: str) -> AbstractAsyncContextManager[LeadPort]:
        """Take the lead, after whoever has it."""
        ...


Peer = TypeVar("Peer", covariant=True)
Out = TypeVar("Out", contravariant=True)
In = TypeVar("In", covariant=True)


class LinkPort(Protocol[Peer, Out, In]):
    """One life of a stream; see wire.link.Link."""

    @property
    def id(self) -> LinkId:
        """Which life of the stream."""
        ...

    @property
    def peer(self) -> Peer:
        """What the other end said first."""
        ...

    @property
    def ended_why(self) -> str:
        """Empty while it lives."""
        ...

    async def send(self, message: Out) -> None:
        """Queue a message; raise LinkLostError where the link has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[In]:
        """Receive until the end."""
        ...

    def end(self, why: str) -> None:
        """End it now."""
        ...


NodeLink = LinkPort[Hello, AgentDown, AgentUp]
GatewayLink = LinkPort[GatewayHello, GatewayDown, GatewayUp]
