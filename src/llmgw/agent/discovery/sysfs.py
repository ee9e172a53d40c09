"""RDMA ports as the kernel's sysfs shows them: thin and lenient, one bad file hides one field."""

import re
from pathlib import Path
from typing import Final

from llmgw.core.fleet.hardware import RdmaPort

ACTIVE: Final = frozenset({4, 5})
"""ACTIVE and ACTIVE_DEFER."""
_RATE: Final = re.compile(r"([\d.]+)\s*Gb/sec")
_LINK_LOCAL: Final = "fe80:0000:0000:0000"
_GIDS_READ: Final = 16
"""Of up to 255 slots, the first hold the addresses; the rest is empty."""


def read_rdma_ports(sys: Path) -> tuple[RdmaPort, ...]:
    """Return all RDMA ports of the machine by name; none where there is no RDMA."""
    return tuple(
        _port(device, port)
        for device in _entries(sys / "class/infiniband")
        for port in _entries(device / "ports")
        if port.name.isdigit()
    )


def _port(device: Path, port: Path) -> RdmaPort:
    state = _text(port / "state").partition(":")[0]
    link_layer = _text(port / "link_layer") or "Unknown"
    rate = _RATE.match(_text(port / "rate"))
    numa = _text(device / "device/numa_node")
    return RdmaPort(
        device=device.name,
        port=int(port.name),
        active=state.isdigit() and int(state) in ACTIVE,
        link_layer=link_layer,
        rate_gbps=float(rate[1]) if rate else None,
        subnet=_subnet(port, link_layer),
        netdev=_netdev(device, port),
        numa_node=int(numa) if numa.isdigit() else None,
    )


def _subnet(port: Path, link_layer: str) -> str | None:
    """Return what tells this port's fabric from others, None where nothing does.

    On InfiniBand the prefix of the first GID, unless it is the default one that every fabric has.
    On RoCE the IPv4 network is not in sysfs, and a guess would join fabrics that never meet.
    """
    if link_layer != "InfiniBand":
        return None
    prefix = _text(port / "gids/0")[:19]
    return prefix if prefix and prefix != _LINK_LOCAL and prefix.strip("0:") else None


def _netdev(device: Path, port: Path) -> str | None:
    for slot in range(_GIDS_READ):
        if name := _text(port / "gid_attrs/ndevs" / str(slot)):
            return name
    names = [entry.name for entry in _entries(device / "device/net")]
    return names[0] if len(names) == 1 else None


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
