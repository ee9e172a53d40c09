"""How a node's inventory is shown."""

import typer

from llmgw.core.document import dump
from llmgw.core.fleet.hardware import Gpu, Inventory, RdmaPort


def show(found: Inventory, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        typer.echo(dump(found))
        return
    ports = found.ports
    lines = [
        f"node      {found.name} ({found.node or 'no id yet: no agent has run here'})",
        f"address   {found.address or 'unknown'}, engines on ports {ports.first} to {ports.last}",
        f"machine   {found.cpus} processors, {found.memory_mib / 1024:.1f} GiB",
        *(f"gpu       {_gpu(gpu)}" for gpu in found.gpus),
        *([] if found.gpus else ["gpu       none found"]),
        *(f"rdma      {_rdma(port)}" for port in found.rdma_ports),
        *(f"engine    {e.kind}: {e.program}" for e in found.engines),
        *([] if found.engines else ["engine    none found; see the setting `engines`"]),
        *(f"label     {name}={value}" for name, value in sorted(found.labels.items())),
        *(f"warning   {warning}" for warning in found.warnings),
    ]
    typer.echo("\n".join(lines))


def _gpu(gpu: Gpu) -> str:
    parts = [f"{gpu.index}: {gpu.gpu_class} ({gpu.name})", gpu.uuid]
    if gpu.memory_mib is not None and gpu.memory_used_mib is not None:
        parts.append(f"{gpu.memory_used_mib} of {gpu.memory_mib} MiB used")
    if gpu.compute_capability is not None:
        major, minor = gpu.compute_capability
        parts.append(f"compute capability {major}.{minor}")
    if gpu.unusable:
        parts.append(f"not usable: {gpu.unusable}")
    return ", ".join(parts)


def _rdma(port: RdmaPort) -> str:
    state = "active" if port.active else "down"
    rate = f", {port.rate_gbps:g} Gb/s" if port.rate_gbps is not None else ""
    return f"{port.device}:{port.port}, {port.link_layer}, {state}{rate}"
