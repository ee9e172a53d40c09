"""Measure the daemons with real engines on the tiny model: memory, time to start, CPU at rest.

Prints one line per figure with the aim beside it. Times include the interpreter's start.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx

from llmgw.testing.tiny_gguf import make_tiny_gguf
from llmgw.testing.waiting import until
from tests.e2e.cluster import READY_S, Cluster

SHARDS = 8
ROUNDS = 3
REST_S = 20.0
TICKS = os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB, as the kernel counts it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def own_mb(pid: int) -> float:
    """Return the memory that only this process has: what would come back if it ended."""
    own = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_"):
            own += int(line.split()[1])
    return own * 1024 / 1e6


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def seconds_until(condition: Callable[[], bool], within_s: float) -> float:
    """Return how long it takes until a condition holds."""
    began = time.monotonic()
    until(condition, within_s=within_s)
    return time.monotonic() - began


def answers(cluster: Cluster) -> bool:
    """Tell whether a request is answered."""
    with contextlib.suppress(httpx.HTTPError):
        return cluster.ask(1).status_code == 200
    return False


def all_ready(cluster: Cluster, count: int) -> bool:
    """Tell whether so many replicas are ready and their node is heard."""
    with contextlib.suppress(httpx.HTTPError, OSError):
        phases = [r["phase"] for r in cluster.replicas()]
        return phases == ["ready"] * count and cluster.node_is_heard()
    return False


def say(what: str, figure: str, aim: str) -> None:
    """Print one line."""
    print(f"{what:58} {figure:>12}   aim {aim}")


def rest(cluster: Cluster, runner: int) -> None:
    """Measure CPU and memory while nothing happens."""
    pids = {name: process.pid for name, process in cluster.processes.items()} | {"runner": runner}
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    over_s = time.monotonic() + REST_S
    until(lambda: time.monotonic() > over_s, within_s=2 * REST_S)
    for name, pid in pids.items():
        share = (cpu_s(pid) - before[name]) / REST_S
        say(f"{name}: CPU at rest, {SHARDS} shards", f"{share:.2%}", "< 1 %")
    say("runner: own memory", f"{own_mb(runner):.1f} MB", "8 MB")
    say("agent: resident", f"{resident_mb(pids['agent']):.0f} MB", "80 MB")
    say("serve with gateway: resident", f"{resident_mb(pids['serve']):.0f} MB", "120 MB")


def restarts(cluster: Cluster) -> None:
    """Measure how long each daemon takes to be itself again after kill -9."""
    serve, agent = [], []
    for _ in range(ROUNDS):
        cluster.kill("serve")
        cluster.serve()
        serve.append(seconds_until(lambda: answers(cluster), READY_S))
        seconds_until(lambda: all_ready(cluster, SHARDS), READY_S)
        cluster.kill("agent")
        seconds_until(lambda: not cluster.node_is_heard(), READY_S)
        cluster.agent()
        agent.append(seconds_until(lambda: all_ready(cluster, SHARDS), READY_S))
    say("llmgw serve: start to first answer (median of 3)", f"{median(serve):.2f} s", "2 s")
    say(f"agent: restart to {SHARDS} shards ready (median of 3)", f"{median(agent):.2f} s", "1 s")


def main() -> None:
    """Run it all on one cluster."""
    with tempfile.TemporaryDirectory(prefix="llmgw-") as name:
        cluster = Cluster(Path(name), make_tiny_gguf(Path(name) / "tiny.gguf"))
        cluster.pace = {}
        try:
            cluster.up_to_ready()
            cluster.apply(cluster.catalog(replicas=SHARDS))
            seconds_until(lambda: all_ready(cluster, SHARDS), READY_S)
            rest(cluster, cluster.runners()[0])
            restarts(cluster)
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
