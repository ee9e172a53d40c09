"""Builds an agent out of its parts: the one place where they meet."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from llmgw.agent import gpus
from llmgw.agent.discovery.host import read_host
from llmgw.agent.discovery.nvml import Nvml
from llmgw.agent.engine_http import EngineHttp
from llmgw.agent.files import Disk, RealDisk
from llmgw.agent.http import AgentHttp
from llmgw.agent.identity import StateLock, Terms, node_identity, read_machine_id
from llmgw.agent.inventory import InventoryKeeper, Who
from llmgw.agent.launcher import Launcher
from llmgw.agent.link import Links
from llmgw.agent.logs import Logs
from llmgw.agent.obedience import Obedience
from llmgw.agent.options import AgentOptions
from llmgw.agent.probes import HttpProber
from llmgw.agent.pruning import Pruning
from llmgw.agent.pulse import Events, Pulse
from llmgw.agent.reporter import Reporter
from llmgw.agent.runs import RunsFolder
from llmgw.agent.shard import Tools
from llmgw.agent.starting import Starting
from llmgw.agent.supervisor import Supervisor
from llmgw.runtime.clock import Clock, Random
from llmgw.runtime.tasks import Service
from llmgw.runtime.threads import ThreadPool
from llmgw.wire.agent_link import ControlLink, dial_control
from llmgw.wire.dialing import PACE, DialOptions, KeepDialing, Pace
from llmgw.wire.messages import Hello


@dataclass(frozen=True, slots=True)
class Outside:
    """What an agent takes from outside: the real things, or a test's."""

    clock: Clock
    random: Random
    disk: Disk
    driver: gpus.Driver
    dial: DialOptions
    pace: Pace = PACE


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that was built and not yet run."""

    who: Who
    supervisor: Supervisor
    reporter: Reporter
    links: Links
    http: AgentHttp | None
    services: tuple[Service, ...]
    """In the order in which they are started."""


def outside(options: AgentOptions, clock: Clock, random: Random) -> Outside:
    """Return the real things."""
    return Outside(clock, random, RealDisk(), Nvml(options.machine.sys), DialOptions())


@asynccontextmanager
async def build_agent(options: AgentOptions, world: Outside) -> AsyncIterator[Agent]:
    """Build an agent, to be run inside the block; shards go on after it.

    Raises AnotherAgentError, CopiedDiskError or StorageError, each with what to do.
    """
    pool = ThreadPool("agent")
    try:
        await pool.run(world.disk.make_folder, options.state / "runs")
        async with _held(StateLock(options.state), pool):
            launcher = Launcher(options.environment, pool)
            http = EngineHttp()
            try:
                yield await _built(options, world, pool, launcher, http)
            finally:
                launcher.close()
                await http.close()
    finally:
        await pool.close()


async def _built(
    options: AgentOptions,
    world: Outside,
    pool: ThreadPool,
    launcher: Launcher,
    http: EngineHttp,
) -> Agent:
    who, terms = await pool.run(_who, options, world)
    clock, machine = world.clock, options.machine
    pulse = Pulse()
    events = Events(clock, pulse)
    runs = RunsFolder(options.state, world.disk)
    grants = gpus.Gpus(world.driver, options.state, machine.proc, world.disk, pool)
    await pool.run(grants.load)
    starting = Starting(options, runs, grants, pool)
    tools = Tools(
        runs=runs,
        starting=starting,
        spawner=launcher,
        prober=HttpProber(http, machine.proc, pool),
        http=http,
        events=events,
        pulse=pulse,
        pool=pool,
        clock=clock,
        boot=who.host.boot,
        probe_starting_s=options.probe_starting_s,
        probe_ready_s=options.probe_ready_s,
    )
    pruning = Pruning(options.ended_per_replica, options.ended_bytes_max)
    supervisor = Supervisor(tools, grants, pruning)
    inventory = InventoryKeeper(options, who, grants, supervisor, tools)
    obedience = Obedience(terms, supervisor, options.store_switch_s, events, pool, clock)
    reporter = Reporter(inventory, supervisor, obedience, events)
    links = Links(reporter, obedience, Logs(runs, pool, clock), pulse, clock, options.report_s)
    services: list[Service] = [supervisor, inventory, obedience]
    own = None
    if options.http_port is not None:
        own = AgentHttp(options.http_host, options.http_port, reporter, links)
        services.append(own)
    hello = _Hello(options, who, obedience)
    services += [_Dialing(endpoint, world, hello, reporter, links) for endpoint in options.control]
    return Agent(who, supervisor, reporter, links, own, tuple(services))


@asynccontextmanager
async def _held(lock: StateLock, pool: ThreadPool) -> AsyncIterator[None]:
    await pool.run(lock.take)
    try:
        yield
    finally:
        lock.give_back()


class _Hello:
    """Introduces the node, with the highest term obeyed by then."""

    def __init__(self, options: AgentOptions, who: Who, obedience: Obedience) -> None:
        self._options = options
        self._who = who
        self._obedience = obedience

    @property
    def whom(self) -> str:
        """Who it introduces, for people."""
        return f"{self._options.name} (node {self._who.node})"

    def now(self) -> Hello:
        obeyed = self._obedience.obeyed
        return Hello(
            node=self._who.node,
            name=self._options.name,
            machine=self._who.machine,
            boot=self._who.host.boot,
            version=self._options.version,
            term=obeyed.term,
            store=obeyed.store,
        )


class _Dialing:
    """Keeps the link to one control plane, as soon as a report would be complete."""

    def __init__(
        self, endpoint: str, world: Outside, hello: _Hello, reporter: Reporter, links: Links
    ) -> None:
        self.name = f"link to {endpoint} as {hello.whom}"
        self._reporter = reporter

        def dial_once() -> AbstractAsyncContextManager[ControlLink]:
            return dial_control(endpoint, hello.now(), world.dial, world.clock)

        self._dialing = KeepDialing(
            self.name, dial_once, links.use, world.clock, world.random, world.pace
        )

    async def run(self) -> None:
        await self._reporter.ready()
        await self._dialing.run()


def _who(options: AgentOptions, world: Outside) -> tuple[Who, Terms]:
    machine_id = read_machine_id(options.machine.machine_id)
    entropy = world.random.randbytes(16)
    identity = node_identity(options.state, machine_id, entropy, world.disk)
    host = read_host(options.machine.proc, options.machine.boot, options.ports)
    return Who(identity.node, machine_id, host), Terms(options.state, world.disk)
