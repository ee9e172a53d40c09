"""Disks that are full or read-only: a clear error, nothing lost, and all is well when mended."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw.testing.waiting import until
from tests.e2e.cluster import READY_S, Cluster
from tests.e2e.test_kills import is_ready
from tests.guards.parts import require

pytestmark = pytest.mark.e2e


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """Put a small disk of its own at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "llmgw-test", str(folder)],
        capture_output=True,
        check=False,
    )
    require("mounts", here=done.returncode == 0, how="run the tests as root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nothing in a folder be opened for writing any more; what is open stays so."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk to the last byte."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as out:
        for size in (65536, 4096, 1):
            try:
                while out.write(b"x" * size):
                    pass
            except OSError:
                continue
    return ballast


def test_a_full_store_disk_refuses_edits_clearly_and_recovers(cluster: Cluster) -> None:
    with mounted(cluster.folder / "serve", "24m"):
        cluster.up_to_ready(gateway_inside=False)
        engine = cluster.one_engine()
        ballast = fill(cluster.folder / "serve")
        refused = cluster.ctl("apply", str(cluster.catalog(context_tokens=1024)))
        assert refused.returncode == 1, (refused.stdout, refused.stderr)
        assert "space" in refused.stderr.lower() or "full" in refused.stderr.lower()
        assert cluster.ask().status_code == 200
        ballast.unlink()
        assert cluster.one_engine() == engine
        cluster.apply(cluster.catalog())
        until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
        assert cluster.one_engine() == engine
        cluster.close()


def test_a_read_only_agent_disk_stops_nothing_and_is_said(cluster: Cluster) -> None:
    agent = cluster.folder / "agent"
    with mounted(agent, "24m"):
        cluster.up_to_ready()
        engine = cluster.one_engine()
        with read_only(agent):
            cluster.apply(cluster.catalog(replicas=2))
            until(lambda: said(cluster, "read-only"), within_s=20, saying=cluster.state)
            assert cluster.ask().status_code == 200
            assert cluster.engines() == [engine]
        until(lambda: len(cluster.engines()) == 2, within_s=READY_S, saying=cluster.state)
        assert engine in cluster.engines()
        cluster.close()


def said(cluster: Cluster, word: str) -> bool:
    """Whether an operator can read that word: in the agent's log or beside a replica."""
    whys = [str(replica["why"]) for replica in cluster.replicas()]
    return any(word in text.lower() for text in (cluster.log("agent"), *whys))
