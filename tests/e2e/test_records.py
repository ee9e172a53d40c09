"""What the disk says after a crash may be old, wrong or unreadable: nobody else pays for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.waiting import until
from tests.e2e.cluster import READY_S, Cluster
from tests.e2e.test_kills import is_ready

pytestmark = pytest.mark.e2e


def identity_file(cluster: Cluster) -> Path:
    """Return the one file that says whose processes a shard's are."""
    (file,) = (cluster.folder / "agent" / "runs").glob("*.identity")
    return file


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def run_folder(cluster: Cluster) -> Path:
    """Return the one shard's directory."""
    (folder,) = (f for f in (cluster.folder / "agent" / "runs").iterdir() if f.is_dir())
    return folder


def kill_all(cluster: Cluster, *, engines: bool = True) -> None:
    """Kill both daemons and the runner, and the engine unless it is to live."""
    cluster.kill("serve", "agent")
    for pid in cluster.runners() + (cluster.engines() if engines else []):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not cluster.runners(), within_s=10)


def start(cluster: Cluster) -> None:
    """Start both daemons again."""
    cluster.agent()
    cluster.serve()
    cluster.wait_for_admin()


def test_after_a_reboot_the_shard_has_failed_with_that_reason_and_starts_anew(
    cluster: Cluster,
) -> None:
    cluster.up_to_ready()
    kill_all(cluster)
    for file in (identity_file(cluster), run_folder(cluster) / "record.json"):
        edit(file, lambda written: written.update(boot_id="another-boot"))
    start(cluster)
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.replicas()[0]["incarnation"] == 2
    assert any("the machine restarted" in event["what"] for event in cluster.events())
    cluster.one_engine()


@contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that is nobody's business."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def start_ticks(pid: int) -> int:
    """Return when a process started, as the kernel counts."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[19])


@pytest.mark.parametrize("ticks", ["wrong", "none", "unreadable"])
def test_a_recycled_pid_in_the_records_harms_no_stranger(cluster: Cluster, ticks: str) -> None:
    cluster.up_to_ready()
    kill_all(cluster)
    with stranger() as other:

        def recycle(identity: dict[str, Any]) -> None:
            there = start_ticks(other.pid)
            for part in (identity, *identity["commands"]):
                part["pid"] = other.pid
                part["start_ticks"] = there - 1 if ticks == "wrong" else "?"
                if ticks == "none":
                    del part["start_ticks"]
            identity["session"] = other.pid

        edit(identity_file(cluster), recycle)
        start(cluster)
        cluster.apply(cluster.catalog(replicas=0))
        until(lambda: cluster.node_is_heard(), within_s=20, saying=cluster.state)
        until(lambda: bool(cluster.events()), within_s=20, saying=cluster.state)
        until(lambda: settled(cluster), within_s=20, saying=cluster.state)
        assert other.poll() is None
    assert other.returncode == -signal.SIGKILL


def settled(cluster: Cluster) -> bool:
    """Whether the control plane has heard the node and judged what it reported."""
    return all(r["phase"] in {"failed", "stopping"} for r in cluster.replicas())


def test_processes_that_nothing_describes_any_more_are_killed_with_an_event(
    cluster: Cluster,
) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    kill_all(cluster, engines=False)
    assert cluster.one_engine() == engine
    folder = run_folder(cluster)
    for name in ("spec.json", "launch.json", "record.json"):
        (folder / name).write_bytes(b"\0{not json")
    start(cluster)
    until(lambda: engine not in cluster.engines(), within_s=30, saying=cluster.state)
    cluster.wait_for_answer()
    assert any("kill" in event["what"] for event in cluster.events()), cluster.events()
    cluster.one_engine()


def test_processes_that_nobody_can_identify_are_left_alone_and_said(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    kill_all(cluster, engines=False)
    folder = run_folder(cluster)
    for file in (identity_file(cluster), *(folder / n for n in ("spec.json", "record.json"))):
        file.write_bytes(b"\0{not json")
    start(cluster)
    until(lambda: cluster.node_is_heard(), within_s=20, saying=cluster.state)
    until(
        lambda: any(folder.name in event["subject"] for event in cluster.events()),
        within_s=20,
        saying=lambda: f"{cluster.events()}\n{cluster.state()}",
    )
    assert engine in cluster.engines()


@pytest.mark.parametrize("name", ["term.json", "node.json"])
def test_a_truncated_state_file_is_named_and_nothing_runs_twice(
    cluster: Cluster, name: str
) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    cluster.kill("agent")
    file = cluster.folder / "agent" / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    cluster.agent()
    until(lambda: name in cluster.log("agent"), within_s=20, saying=cluster.state)
    assert cluster.ask().status_code == 200
    file.write_bytes(whole)
    if name == "node.json":
        assert cluster.processes.pop("agent").wait(20) == 1
        cluster.agent()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.one_engine() == engine
