"""GPUs through the real pynvml over a scripted driver: no fault of one hides the others."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.hardware import STATE_VARIABLE

SESSION = Path(__file__).parent / "nvml_session.py"
TWO = """
[gpu]
uuid=GPU-b
pci=0000:99:00.0
used_mib=100
process=4242:90
process=4243
[gpu]
uuid=GPU-a
pci=0000:17:00.0
numa=1
"""


class Session:
    """One process that reads when asked."""

    def __init__(self, process: subprocess.Popen[str], state: Path) -> None:
        self._process = process
        self._state = state

    def read(self, state: str | None) -> Any:
        """Set the hardware and return what is read then."""
        if state is None:
            self._state.unlink(missing_ok=True)
        else:
            self._state.write_text(state)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture
def session(nvml: Path, tmp_path: Path) -> Iterator[Session]:
    yield from in_a_session(str(nvml), tmp_path / "hardware")


def in_a_session(library_path: str, state: Path) -> Iterator[Session]:
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path, STATE_VARIABLE: str(state)}
    process = subprocess.Popen(
        [sys.executable, str(SESSION)],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        yield Session(process, state)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def uuids(reading: Any) -> list[str]:
    return [seen["gpu"]["uuid"] for seen in reading["gpus"]]


def gpu(reading: Any, uuid: str) -> Any:
    return next(seen["gpu"] for seen in reading["gpus"] if seen["gpu"]["uuid"] == uuid)


def test_gpus_come_in_pci_order_with_the_class_that_the_driver_s_memory_gives(
    session: Session,
) -> None:
    reading = session.read(TWO)
    assert uuids(reading) == ["GPU-a", "GPU-b"]
    assert [seen["gpu"]["index"] for seen in reading["gpus"]] == [0, 1]
    a = gpu(reading, "GPU-a")
    assert (a["gpu_class"], a["memory_mib"], a["numa_node"]) == ("l40s-45g", 46068, 1)
    assert (a["pci"], a["compute_capability"]) == ("0000:17:00.0", [8, 9])
    processes = reading["gpus"][1]["processes"]
    assert [(p["pid"], p["memory_mib"]) for p in processes] == [(4242, 90), (4243, None)]
    assert reading["warnings"] == []


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_mib"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetPciInfo_v3", "pci"),
        ("nvmlDeviceGetNumaNodeId", "numa_node"),
    ],
)
def test_a_field_that_fails_is_unknown_and_hides_nothing_else(
    session: Session, function: str, field: str
) -> None:
    reading = session.read(TWO + f"fail.{function}=3\n")
    assert len(reading["gpus"]) == 2
    assert gpu(reading, "GPU-a")[field] is None
    assert gpu(reading, "GPU-b")["memory_mib"] == 46068


def test_a_process_list_that_fails_is_unknown_and_not_empty(session: Session) -> None:
    reading = session.read(TWO + "fail.nvmlDeviceGetComputeRunningProcesses_v3=999\n")
    assert reading["gpus"][0]["processes"] is None


def test_a_lost_gpu_keeps_its_name_and_place_and_the_others_keep_theirs(session: Session) -> None:
    session.read(TWO)
    reading = session.read(TWO + "fail.nvmlDeviceGetHandleByIndex_v2=15\n")
    assert uuids(reading) == ["GPU-a", "GPU-b"]
    assert "lost" in gpu(reading, "GPU-a")["unusable"]
    assert gpu(reading, "GPU-b")["index"] == 1
    assert gpu(reading, "GPU-b")["unusable"] == ""
    assert reading["gpus"][0]["lost"] is True
    assert gpu(session.read(TWO), "GPU-a")["unusable"] == ""


def test_a_gpu_that_the_driver_does_not_count_any_more_is_lost(session: Session) -> None:
    session.read(TWO)
    reading = session.read("[gpu]\nuuid=GPU-b\npci=0000:99:00.0\n")
    assert uuids(reading) == ["GPU-a", "GPU-b"]
    assert "lost" in gpu(reading, "GPU-a")["unusable"]


def test_a_gpu_that_is_lost_from_the_start_is_shown_without_a_name(session: Session) -> None:
    reading = session.read(TWO + "fail.nvmlDeviceGetUUID=15\n")
    assert uuids(reading) == ["lost-1", "GPU-b"]


def test_a_gpu_in_mig_mode_is_not_handed_out_whole(session: Session) -> None:
    assert "MIG" in gpu(session.read(TWO + "mig=1\n"), "GPU-a")["unusable"]


def test_a_driver_that_goes_and_comes_back_is_read_again(session: Session) -> None:
    session.read(TWO)
    gone = session.read(None)
    assert all(seen["lost"] for seen in gone["gpus"])
    assert all(not seen["gpu"]["unusable"] for seen in session.read(TWO)["gpus"])


def test_a_machine_without_a_driver_has_no_gpus_and_no_warnings(session: Session) -> None:
    assert session.read(None) == {"gpus": [], "warnings": []}


def test_a_machine_without_the_library_has_no_gpus_and_no_warnings(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    for session in in_a_session("", tmp_path / "hardware"):
        assert session.read(TWO) == {"gpus": [], "warnings": []}
