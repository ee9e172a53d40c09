"""A control plane on real streams, with a SQLite store or a catalog file, and fake agents."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.control.memory_store import MemoryStore
from llmgw.control.plane import ControlOptions, ControlPlane, build_control
from llmgw.control.ports import GatewayLink, StorePort
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.decision import ReplicaStatus
from llmgw.core.fleet.view import Rules
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.tasks import OwnedTasks
from llmgw.store.store import open_store
from llmgw.testing.agent import FakeAgent
from llmgw.testing.fleet import PLAN
from llmgw.testing.waiting import eventually
from llmgw.wire.agent_link import AgentServer
from llmgw.wire.gateway_link import GatewayServer
from llmgw.wire.serving import ListenOptions

CLOCK = SystemClock()


@dataclass
class Running:
    """A control plane that runs, and how to talk about it."""

    plane: ControlPlane
    endpoint: str
    gateways: str
    tasks: OwnedTasks

    @property
    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """What was decided last."""
        seen = self.plane.reconciler.seen
        return seen.decision.statuses if seen else ()

    def phases(self) -> list[str]:
        """Phases of all replicas."""
        return sorted(status.phase for status in self.statuses)

    async def apply(self, catalog: Catalog) -> Catalog:
        """Edit the catalog as the admin API does."""
        saved = await self.plane.store.catalog.save(catalog, None, CLOCK.wall_s())
        self.plane.edited()
        return saved

    async def until(self, condition: Callable[[], bool], within_s: float = 10.0) -> None:
        """Wait, and tell what there was instead."""
        await eventually(condition, within_s=within_s, saying=self._story)

    def _story(self) -> str:
        seen = self.plane.reconciler.seen
        trouble = self.plane.reconciler.trouble or self.plane.leader.trouble
        return f"{trouble} {seen.decision if seen else 'no turn was taken'}"

    async def turn(self) -> None:
        """Let one more turn pass."""
        turned = self.plane.reconciler.turned
        self.plane.wake.set()
        await self.until(turned.is_set)

    async def events(self) -> list[str]:
        """What was stored."""
        return [e.what for e in await self.plane.store.events.read(limit=500)]


@asynccontextmanager
async def running(
    store: StorePort, options: ControlOptions | None = None
) -> AsyncIterator[Running]:
    """Run a control plane on this store; what happens to it at the end is a stop."""
    options = options or ControlOptions("test", rules=Rules(settle_s=30.0))
    plane = await build_control(store, options, CLOCK, secrets.token_bytes, PLAN)
    listen = ListenOptions()
    agents = AgentServer(["127.0.0.1:0"], plane.links.on_link, plane.links.welcome, CLOCK, listen)

    async def on_gateway(link: GatewayLink) -> None:
        await plane.publisher.on_gateway(link)

    gateways = GatewayServer(
        ["127.0.0.1:0"], on_gateway, plane.links.welcome_gateway, CLOCK, listen
    )
    agents.take_in(gateways)
    async with OwnedTasks("control plane", tasks_max=8) as tasks:
        services = (*plane.services, agents)
        started = [tasks.start(service.run(), service.name) for service in services]
        assert len(started) == len(services)
        await agents.listening.wait()
        await gateways.listening.wait()
        endpoint, other = (f"127.0.0.1:{server.ports[0]}" for server in (agents, gateways))
        yield Running(plane, endpoint, other, tasks)


@asynccontextmanager
async def on_sqlite(folder: Path, options: ControlOptions | None = None) -> AsyncIterator[Running]:
    """The same with a store in a folder."""
    async with (
        open_store(f"sqlite:///{folder}/llmgw.db", CLOCK, secrets.token_bytes) as store,
        running(store, options) as plane,
    ):
        yield plane


@asynccontextmanager
async def on_file(file: Path, settle_s: float = 30.0) -> AsyncIterator[Running]:
    """The same with `--store none`."""
    store = MemoryStore(file, "none-test")
    options = ControlOptions(
        "test", rules=Rules(settle_s=settle_s), door=store.nodes.why_not_listed
    )
    async with running(store, options) as plane:
        yield plane


@dataclass
class Nodes:
    """Fake agents that outlive control planes."""

    tasks: OwnedTasks
    agents: list[FakeAgent] = field(default_factory=list)
    runs: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, endpoint: str, node: str = "n1", agent: FakeAgent | None = None) -> FakeAgent:
        """Start one."""
        agent = agent or FakeAgent(endpoint, node)
        agent.endpoint = endpoint
        self.agents.append(agent)
        self.runs.append(self.tasks.start(agent.run(), f"agent {node}"))
        return agent
