"""When a GPU counts as free of a shard: each world with the answer that a person would give."""

import pytest

from llmgw.agent.discovery.nvml import GpuProcess, SeenGpu
from llmgw.agent.memory_proof import Baseline, Holder, baseline, why_not_free
from llmgw.core.fleet.hardware import Gpu

OURS, DEAD, OTHER, STRANGER = 11, 12, 13, 14
HOLDERS = {OURS: Holder.ENDED, OTHER: Holder.OURS, STRANGER: Holder.STRANGER}


def seen(used_mib: int | None, **processes: int | None) -> SeenGpu:
    gpu = Gpu("GPU-0", 0, "NVIDIA L40S", "l40s-45g", 46068, used_mib)
    pids = {"ours": OURS, "dead": DEAD, "other": OTHER, "stranger": STRANGER}
    return SeenGpu(gpu, tuple(GpuProcess(pids[name], mib) for name, mib in processes.items()))


EMPTY = baseline(seen(500))
BESIDE_ANOTHER = baseline(seen(10_500, other=10_000))


@pytest.mark.parametrize(
    ("now", "before", "word"),
    [
        (seen(500), EMPTY, ""),
        (seen(600), EMPTY, ""),
        (seen(30_500, ours=30_000), EMPTY, "of the shard"),
        (seen(30_500, dead=30_000), EMPTY, "has ended"),
        (seen(30_500), EMPTY, "still used"),
        (seen(20_500, stranger=20_000), EMPTY, ""),
        (seen(25_500, stranger=20_000), EMPTY, "still used"),
        (seen(10_500, other=10_000), BESIDE_ANOTHER, ""),
        (seen(12_500, other=12_000), BESIDE_ANOTHER, ""),
        (seen(22_500, other=12_000), BESIDE_ANOTHER, "still used"),
        (seen(500), BESIDE_ANOTHER, ""),
        (seen(900, other=None), baseline(seen(900, other=None)), ""),
        (seen(9_900, other=None), baseline(seen(900, other=None)), "still used"),
        (seen(None), EMPTY, ""),
        (seen(900), Baseline("GPU-0"), ""),
        (seen(9_900), Baseline("GPU-0"), "still used"),
    ],
)
def test_free_means_none_of_ours_listed_and_the_rest_back_to_what_it_was(
    now: SeenGpu, before: Baseline, word: str
) -> None:
    why = why_not_free(now, before, HOLDERS)
    assert (word in why) if word else why == ""


def test_a_driver_that_cannot_tell_proves_nothing() -> None:
    gpu = seen(500).gpu
    assert "list" in why_not_free(SeenGpu(gpu, None), EMPTY, HOLDERS)
    assert "lost" in why_not_free(SeenGpu(gpu, None, lost=True), EMPTY, HOLDERS)
