"""Whether a GPU that a shard held is free again: judged from the driver's list and its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from llmgw.agent.discovery.nvml import GpuProcess, SeenGpu

SLACK_MIB: Final = 256
"""The driver's own use moves a little from start to start."""
UNKNOWN_BASELINE_MIB: Final = 1024
"""What a driver holds for itself at most, where nobody wrote down what it was."""


class Holder(StrEnum):
    """Who a process on a GPU is."""

    STRANGER = "stranger"
    OURS = "ours"
    """Of a shard that lives."""
    ENDED = "ended"
    """Of the shard whose memory is asked for."""
    DEAD = "dead"
    """The driver lists it, and there is no such process."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one GPU held before a shard started."""

    uuid: str
    used_mib: int | None = None
    rest_mib: int | None = None
    """What was used beside the listed processes; None where one of them had no figure."""


def baseline(seen: SeenGpu) -> Baseline:
    """Return what a GPU holds now."""
    return Baseline(seen.gpu.uuid, seen.gpu.memory_used_mib, _rest_mib(seen, seen.processes))


def why_not_free(seen: SeenGpu, before: Baseline, holders: Mapping[int, Holder]) -> str:
    """Return why the GPU is not known to be free of the shard, empty if it is.

    Free: none of the shard's processes is in the driver's list, and what is used beside the
    processes of others is what it was before the start.
    """
    if seen.lost:
        return "the driver has lost it, so nobody can tell whether its memory is free"
    if seen.processes is None:
        return "the driver does not list its processes"
    for process in seen.processes:
        match holders.get(process.pid, Holder.DEAD):
            case Holder.ENDED:
                return f"process {process.pid} of the shard still holds it"
            case Holder.DEAD:
                return f"the driver still lists process {process.pid}, which has ended"
            case Holder.STRANGER | Holder.OURS:
                pass
    return _why_still_used(seen, before, seen.processes)


def _why_still_used(seen: SeenGpu, before: Baseline, others: Sequence[GpuProcess]) -> str:
    used_mib = seen.gpu.memory_used_mib
    if used_mib is None:
        return ""  # a GPU without memory figures (GB10): the empty list is all there is to know
    rest_mib = _rest_mib(seen, others)
    if rest_mib is None:
        # A listed process without a figure: only the whole can be compared.
        allowed_mib = UNKNOWN_BASELINE_MIB if before.used_mib is None else before.used_mib
        held_mib = used_mib
    else:
        allowed_mib = UNKNOWN_BASELINE_MIB if before.rest_mib is None else before.rest_mib
        held_mib = rest_mib
    if held_mib <= allowed_mib + SLACK_MIB:
        return ""
    return f"{held_mib} MiB are still used, {allowed_mib} MiB were before the start"


def _rest_mib(seen: SeenGpu, processes: Sequence[GpuProcess] | None) -> int | None:
    if seen.gpu.memory_used_mib is None or processes is None:
        return None
    listed_mib = 0
    for process in processes:
        if process.memory_mib is None:
            return None
        listed_mib += process.memory_mib
    return max(seen.gpu.memory_used_mib - listed_mib, 0)
