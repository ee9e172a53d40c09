"""Puts the parts of a control plane together; `apps` gives it a store, listeners and a gateway."""

import asyncio
from dataclasses import dataclass, field

from llmgw.control.fleet import Fleet
from llmgw.control.leader import Leader
from llmgw.control.links import About, AgentLinks
from llmgw.control.messages import Message
from llmgw.control.plans import Plans
from llmgw.control.ports import Entropy, StorePort
from llmgw.control.publisher import Publisher
from llmgw.control.reconciler import Parts, Reconciler
from llmgw.control.registry import Door, Registry, always_open
from llmgw.control.usage_writer import UsageWriter
from llmgw.control.wanted import WantedReader
from llmgw.core.fleet.view import Planner, Rules
from llmgw.runtime.clock import Clock
from llmgw.runtime.tasks import Service


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """What a control plane is told when it is built."""

    holder: str
    """Who this is, for those who stand by: its process and host."""
    heartbeat_s: float = 2.0
    silent_after_s: float = 10.0
    rules: Rules = field(default_factory=Rules)
    door: Door = always_open
    """Which nodes may attach at all."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A control plane; its services run until cancelled."""

    store: StorePort
    store_id: str
    fleet: Fleet
    registry: Registry
    links: AgentLinks
    leader: Leader
    publisher: Publisher
    reader: WantedReader
    reconciler: Reconciler
    usage: UsageWriter
    wake: asyncio.Event
    clock: Clock

    @property
    def services(self) -> tuple[Service, ...]:
        """In the order of their start."""
        return (self.leader, self.reconciler)

    def tell(self, message: Message) -> None:
        """Tell the owner of the fleet's state, and wake whoever decides."""
        if self.fleet.take(message, self.clock.monotonic_s()):
            self.wake.set()

    def edited(self) -> None:
        """What is wanted has changed in the store."""
        self.reader.edited()
        self.wake.set()


async def build_control(
    store: StorePort,
    options: ControlOptions,
    clock: Clock,
    entropy: Entropy,
    plan: Planner | None = None,
) -> ControlPlane:
    """Return a control plane on this store; reads who it is and which nodes belong."""
    fleet, wake = Fleet(clock.monotonic_s()), asyncio.Event()

    def tell(message: Message) -> None:
        if fleet.take(message, clock.monotonic_s()):
            wake.set()

    store_id, secret = await store.identity.store_id(), await store.identity.secret()
    registry = Registry(store, tell, clock, options.door)
    await registry.refresh()
    leader = Leader(store, options.holder, wake.set, clock)
    about = About(
        store_id,
        options.heartbeat_s,
        options.silent_after_s,
        ledger=store.usage is not None,
    )
    links = AgentLinks(about, registry, lambda: leader.term, tell, entropy)
    usage = UsageWriter(store.usage, clock)
    publisher = Publisher(store.gateways, usage, tell, clock)
    reader = WantedReader(store, registry, clock)
    parts = Parts(leader, links, publisher, reader, registry, wake, secret, options.rules)
    reconciler = Reconciler(store, fleet, parts, plan or Plans(), clock, entropy)
    return ControlPlane(
        store,
        store_id,
        fleet,
        registry,
        links,
        leader,
        publisher,
        reader,
        reconciler,
        usage,
        wake,
        clock,
    )
