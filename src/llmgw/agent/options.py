"""What an agent is told when it is built: its own small slice of the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmgw.core.fleet.hardware import PortRange

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the facts about this machine are read; tests point these at trees of their own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    machine_id: Path = Path("/etc/machine-id")
    boot: str | None = None
    """The kernel's boot id; None reads it."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Settings of one agent. Defaults suit one machine with everything on it."""

    state: Path
    control: tuple[str, ...] = ()
    """Endpoints of all control planes, `host:port`."""
    name: str = "localhost"
    address: str = "127.0.0.1"
    """Where this node's engines are reached."""
    ports: PortRange = field(default_factory=PortRange)
    labels: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    """Programs by engine kind, where they are not on the search path."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The agent's own environment, of which engines get only what the allow-list names."""
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    """Where /metrics and /healthz answer; None is nowhere, 0 any free port."""
    version: str = ""
    log_bytes_max: int = 64 * MIB
    """Of one shard."""
    ended_bytes_max: int = 512 * MIB
    """Of the directories of all ended shards together."""
    ended_per_replica: int = 3
    """How many ended incarnations of a replica keep their logs."""
    report_s: float = 5.0
    """A report is sent at least so often."""
    inventory_s: float = 15.0
    """The inventory is read anew so often."""
    probe_starting_s: float = 0.5
    probe_ready_s: float = 5.0
    store_switch_s: float = 30.0
    """Another store's leader is obeyed only when the known one was not heard for so long."""
    machine: Machine = Machine()
