"""A node for agent tests: a state directory, agents that come and go over it, a control plane."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmgw.agent.agent import Agent, Outside, build_agent
from llmgw.agent.files import Disk, RealDisk
from llmgw.agent.gpus import Driver
from llmgw.agent.options import AgentOptions, Machine
from llmgw.core.fleet.assignment import Command, Readiness, ShardSpec
from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.fleet.report import Report, ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import ReplicaId, ShardKey
from llmgw.runner.record import all_processes, kill_members, read_identity
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.clock import Random, SystemClock
from llmgw.runtime.tasks import OwnedTasks, run_services
from llmgw.testing.control import FakeControl
from llmgw.testing.hardware import ScriptedDriver
from llmgw.wire.dialing import DialOptions, Pace

ENGINE = Path(__file__).parent / "engine.py"
REPLICA = ReplicaId("k3v9qd2m7a")
READINESS = Readiness("/health", "/v1/models", "m", loading_status=503)
QUICK = Pace(Backoff(0.05, 0.2), lived_s=1.0)


@dataclass
class Node:
    """The machine; everything in it outlives its agents."""

    root: Path
    control: FakeControl
    driver: Driver = field(default_factory=ScriptedDriver)
    disk: Disk = field(default_factory=RealDisk)
    options: AgentOptions = field(init=False)

    def __post_init__(self) -> None:
        machine_id = self.root / "machine-id"
        machine_id.write_text("machine-1\n")
        self.options = AgentOptions(
            state=self.root / "state",
            engines={EngineKind.LLAMACPP.value: f"{sys.executable} {ENGINE}"},
            environment={"PATH": os.environ["PATH"], "VLLM_PORT": "tcp://1.2.3.4:5"},
            inventory_s=0.5,
            report_s=1.0,
            probe_starting_s=0.05,
            probe_ready_s=0.2,
            store_switch_s=1.0,
            machine=Machine(machine_id=machine_id),
        )

    @property
    def runs(self) -> Path:
        return self.options.state / "runs"

    def set(self, **options: object) -> None:
        """Change options of agents to come."""
        self.options = replace(self.options, **options)  # type: ignore[arg-type]

    @asynccontextmanager
    async def agent(self, *controls: FakeControl) -> AsyncIterator[Agent]:
        """Run an agent while the block does."""
        endpoints = tuple(control.endpoint for control in controls or (self.control,))
        world = Outside(SystemClock(), Random(), self.disk, self.driver, DialOptions(), QUICK)
        options = replace(self.options, control=endpoints)
        async with (
            build_agent(options, world) as agent,
            OwnedTasks("agent", tasks_max=1) as tasks,
        ):
            stop = asyncio.Event()
            running = tasks.start(run_services(agent.services, stop), "agent")
            try:
                yield agent
            finally:
                stop.set()
                await running

    def spec(self, port: int, incarnation: int = 1, **fields: object) -> ShardSpec:
        """Return a shard of the small engine."""
        argv = ("llama-server", "--host", "127.0.0.1", "--port", str(port), "--alias", "m")
        given: dict[str, object] = {"environment": {}, **fields}
        environment = given.pop("environment")
        spec = ShardSpec(
            replica=REPLICA,
            incarnation=incarnation,
            node_rank=0,
            node_count=1,
            model="m",
            profile="p",
            engine=EngineKind.LLAMACPP,
            commands=(Command("llama-server", argv, environment),),  # type: ignore[arg-type]
            address="127.0.0.1",
            port=port,
            readiness=READINESS,
            key_variable="LLAMA_API_KEY",
            metrics_path="/metrics",
            stop_grace_s=2.0,
        )
        return replace(spec, **given)  # type: ignore[arg-type]

    def identity(self, key: ShardKey) -> Path:
        return self.runs / f"{key}.identity"

    def runner_pid(self, key: ShardKey) -> int:
        return int(json.loads(self.identity(key).read_text())["pid"])

    def commands(self, key: ShardKey) -> object:
        """What was started of a shard, with pids, as its runner wrote it down."""
        return json.loads(self.identity(key).read_text())["commands"]

    def edit(self, path: Path, **members: object) -> None:
        """Change members of a JSON file."""
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, **members}))

    async def phase(self, key: ShardKey, phase: Phase, within_s: float = 15.0) -> ShardReport:
        """Wait until a report shows a shard in a phase."""

        def reached(_: Report) -> bool:
            shard = self.control.shard(key)
            return shard is not None and shard.phase is phase

        await self.control.until(reached, within_s)
        shard = self.control.shard(key)
        assert shard is not None
        return shard

    async def ready(self, key: ShardKey) -> ShardReport:
        return await self.phase(key, Phase.READY)

    def clean_up(self) -> None:
        """End what is left of all shards, whatever a test did to their files."""
        for path in self.runs.glob("*.identity"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                kill_members(read_identity(path), 5.0)
        for process in all_processes():
            if process.ppid == os.getpid() and process.session == process.pid:
                with contextlib.suppress(OSError):
                    os.killpg(process.session, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether a process lives; zombies do not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in (b"Z", b"X")
