"""gRPC beside asyncio and uvloop: no complaint, nothing left, and processes start quickly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire.processes import environment

# libuv keeps one pipe for signals for good.
KEPT_BY_LOOP = {"asyncio": 0, "uvloop": 2}
SCRIPT = str(Path(__file__).with_name("loops_process.py"))


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_links_end_without_a_complaint_and_leave_nothing(loop: str) -> None:
    # Development mode: every unclosed thing and every exception that nobody took is written out.
    command = [sys.executable, "-X", "dev", "-W", "error", SCRIPT, loop, "200"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["tasks"] == []
    assert found["descriptors"] <= KEPT_BY_LOOP[loop]
    assert found["heard"] > 20, "the stream was not busy while processes were started"
    assert found["slowest_s"] < 1.0
