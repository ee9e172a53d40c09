"""scripts/demo, as a newcomer runs it: fetches a real model once, and gets a real answer."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.arch.tree import ROOT
from tests.e2e.cluster import ENVIRONMENT, processes_naming
from tests.guards.parts import require

MODEL = ROOT / ".cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.e2e
@pytest.mark.slow
def test_the_demo_answers_counts_and_stops() -> None:
    with tempfile.TemporaryDirectory(prefix="llmgw-") as name:
        done = subprocess.run(
            [ROOT / "scripts" / "demo", "--once", "--state-dir", name],
            cwd="/",
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode and not MODEL.exists():
            require("the demo's model", here=False, how=done.stderr[-300:])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "scatter" in done.stdout.lower()
        assert "tokens counted" in done.stderr
        assert processes_naming(str(Path(name))) == []
