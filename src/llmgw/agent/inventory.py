"""Everything this node has: read anew every few seconds and when a shard has ended, kept between.

Reports are made from what is kept, so a driver that does not answer delays none of them.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from llmgw.agent import gpus
from llmgw.agent.discovery.host import Host
from llmgw.agent.discovery.processes import pids_of
from llmgw.agent.discovery.programs import Programs
from llmgw.agent.discovery.sockets import held_sockets, listeners
from llmgw.agent.discovery.sysfs import read_rdma_ports
from llmgw.agent.options import AgentOptions
from llmgw.agent.shard import Tools
from llmgw.agent.supervisor import Supervisor
from llmgw.core.fleet.hardware import Inventory, RdmaPort
from llmgw.core.ids import NodeId
from llmgw.runtime.tasks import keep_level

STEP_S_MAX: Final = 60.0
PROOF_S: Final = 0.5
PROOF_GROWTH: Final = 1.5
"""While memory is not proven free the driver is asked again, more and more rarely."""


@dataclass(frozen=True, slots=True)
class Who:
    """Which node this is."""

    node: NodeId
    machine: str
    host: Host


@dataclass(frozen=True, slots=True)
class _Found:
    rdma_ports: tuple[RdmaPort, ...] = ()
    programs: Programs = field(default_factory=Programs)
    ports_taken: tuple[int, ...] = ()


class InventoryKeeper:
    """Keeps the inventory; the one caller of the GPUs' refresh."""

    name = "inventory"

    def __init__(
        self,
        options: AgentOptions,
        who: Who,
        grants: gpus.Gpus,
        supervisor: Supervisor,
        tools: Tools,
    ) -> None:
        self._options = options
        self._who = who
        self._gpus = grants
        self._supervisor = supervisor
        self._starting = tools.starting
        self._pulse = tools.pulse
        self._pool = tools.pool
        self._clock = tools.clock
        self._found = _Found()
        self._runs: gpus.Runs | None = None
        self._read_s = 0.0
        self._proof_s = PROOF_S
        self.ready = asyncio.Event()
        """It was read once: reports may be sent."""

    async def run(self) -> None:
        """Keep it until cancelled."""
        await self._supervisor.adopted.wait()
        beats = self._pulse.listen()
        try:
            await keep_level(
                self._step,
                beats,
                self._options.inventory_s,
                STEP_S_MAX,
                self._clock,
                self.name,
            )
        finally:
            self._pulse.leave(beats)

    def current(self) -> Inventory:
        """Return what is kept."""
        options, host, found = self._options, self._who.host, self._found
        warnings = (
            *host.warnings,
            *found.programs.warnings,
            *self._gpus.state.warnings,
            *self._supervisor.warnings,
        )
        return Inventory(
            node=self._who.node,
            name=options.name,
            address=options.address,
            machine=self._who.machine,
            boot=host.boot,
            cpus=host.cpus,
            memory_mib=host.memory_mib,
            gpus=self._gpus.state.gpus,
            rdma_ports=found.rdma_ports,
            engines=tuple(program.found() for program in found.programs.found),
            ports=options.ports,
            ports_taken=found.ports_taken,
            labels=options.labels,
            warnings=warnings,
            version=options.version,
        )

    async def _step(self) -> None:
        runs = self._supervisor.runs()
        now_s = self._clock.monotonic_s()
        due = now_s - self._read_s >= self._options.inventory_s
        if self.ready.is_set() and runs == self._runs and not due:
            return
        before = self.current()
        await self._gpus.refresh(runs)
        self._found = await self._pool.run(self._look, runs)
        self._runs, self._read_s = runs, now_s
        self.ready.set()
        if self.current() != before:
            self._pulse.beat()
        self._supervisor.wake()
        await self._press()

    async def _press(self) -> None:
        """While a GPU's memory is not proven free, look again soon."""
        if not self._gpus.state.proof_pending:
            self._proof_s = PROOF_S
            return
        await self._clock.sleep(min(self._proof_s, self._options.inventory_s))
        self._proof_s *= PROOF_GROWTH
        self._runs = None
        self._pulse.beat()

    def _look(self, runs: gpus.Runs) -> _Found:
        machine = self._options.machine
        return _Found(
            read_rdma_ports(machine.sys), self._starting.programs(), self._ports_taken(runs)
        )

    def _ports_taken(self, runs: gpus.Runs) -> tuple[int, ...]:
        """Return the ports of the range on which others listen; an unreadable table shows none."""
        proc, ports = self._options.machine.proc, self._options.ports
        try:
            table = [one for one in listeners(proc) if ports.first <= one.port <= ports.last]
            if not table:
                return ()
            sessions = {session for ours in runs.live.values() for session in ours}
            held = held_sockets(proc, pids_of(proc, sessions))
        except OSError:
            return ()
        return tuple(sorted({one.port for one in table if one.inode not in held.where}))
