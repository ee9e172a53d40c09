"""The machine itself: boot id, processors, memory, and whether its port range is safe."""

import os
from dataclasses import dataclass
from pathlib import Path

from llmgw.core.fleet.hardware import PortRange

KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True)
class Host:
    """What does not change while the machine is up."""

    boot: str
    cpus: int
    memory_mib: int
    warnings: tuple[str, ...] = ()


def read_host(proc: Path, boot: str | None, ports: PortRange) -> Host:
    """Read the machine's facts; a missing one is zero or empty."""
    if boot is None:
        boot = _text(proc / "sys/kernel/random/boot_id")
    return Host(boot, len(os.sched_getaffinity(0)), _memory_mib(proc), _port_warnings(proc, ports))


def _memory_mib(proc: Path) -> int:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // KIB_PER_MIB
    return 0


def _port_warnings(proc: Path, ports: PortRange) -> tuple[str, ...]:
    fields = _text(proc / "sys/net/ipv4/ip_local_port_range").split()
    if len(fields) != 2:
        return ()
    first, last = int(fields[0]), int(fields[1])
    if ports.last < first or ports.first > last:
        return ()
    return (
        f"ports {ports.first}-{ports.last} overlap the kernel's own {first}-{last}: any connection"
        " may take one; choose another range or reserve it (net.ipv4.ip_local_reserved_ports)",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
