"""What a node is made of, as its agent reports it. A field is None where nobody could tell."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.core.document import Json
from llmgw.core.ids import NodeId

_MAKERS: Final = re.compile(r"\b(nvidia|geforce|tesla|quadro|generation|gpu)\b")
_MEMORY: Final = re.compile(r"\b(\d+\s*gb?|hbm\d?e?)\b")
_MIB_PER_GIB: Final = 1024


def gpu_class(name: str, memory_mib: int | None) -> str:
    """Return what placement matches on, for instance `l40s-45g`.

    The size is what the driver reports, rounded half up to GiB, never what the name says: an L40S
    sold as 48 GB shows 46068 MiB, and the 480 in "GH200 480GB" is the processor's memory.
    """
    words = _MEMORY.sub(" ", _MAKERS.sub(" ", name.lower().replace("-", " ")))
    model = "-".join(re.findall(r"[a-z0-9.]+", words)) or "gpu"
    if memory_mib is None:
        return f"{model}-unknown"
    return f"{model}-{math.floor(memory_mib / _MIB_PER_GIB + 0.5)}g"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that can be handed out (a MIG instance is one of its own)."""

    uuid: str
    index: int
    """Place in PCI order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    name: str
    gpu_class: str
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    pci: str | None = None
    numa_node: int | None = None
    unusable: str = ""
    """Why placement must not use it (lost, quarantined, held by a stranger); empty if it may."""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an RDMA device, `mlx5_0:1`."""

    device: str
    port: int
    active: bool
    link_layer: str
    rate_gbps: float | None = None
    subnet: str | None = None
    """What tells fabrics apart: the GID's subnet prefix; None where it proves nothing."""
    netdev: str | None = None
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class EngineFound:
    """An engine that this node can start."""

    kind: str
    program: str
    """Path of the executable."""
    version: str | None = None


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports that placement may give out on a node; both ends belong to it."""

    first: int = 18100
    last: int = 18999


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything a node has; sent with every report."""

    node: NodeId
    name: str
    address: str
    """Where the node's engines are reached."""
    machine: str
    """The machine id: a copied disk has another one."""
    boot: str
    cpus: int = 0
    memory_mib: int = 0
    gpus: tuple[Gpu, ...] = ()
    rdma_ports: tuple[RdmaPort, ...] = ()
    engines: tuple[EngineFound, ...] = ()
    ports: PortRange = PortRange()
    ports_taken: tuple[int, ...] = ()
    """Ports of the range that something listens on which is not one of our shards."""
    labels: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    version: str = ""
    """Of the agent."""
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Island:
    """Nodes that share a fabric; a node without one is an island of itself."""

    name: str
    nodes: tuple[NodeId, ...]
    confirmed: bool = True


ISLAND_LABEL: Final = "island"


def islands(nodes: tuple[Inventory, ...]) -> tuple[Island, ...]:
    """Group nodes by the operator's label, else by the subnets that their active ports share.

    All ports of a node that reach the same peers are one fabric, however many rails it has; a
    subnet that proves nothing (None) leaves its node alone.
    """
    groups: dict[str, list[NodeId]] = {}
    for node in sorted(nodes, key=lambda n: n.node):
        groups.setdefault(_fabric(node), []).append(node.node)
    return tuple(Island(name, tuple(members)) for name, members in sorted(groups.items()))


def _fabric(node: Inventory) -> str:
    if label := node.labels.get(ISLAND_LABEL):
        return label
    subnets = {p.subnet for p in node.rdma_ports if p.active and p.subnet is not None}
    return "+".join(sorted(subnets)) or f"node:{node.node}"
