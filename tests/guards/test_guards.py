"""Each guard is seen to catch what it must: planted faults run in a pytest of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llmgw
from tests.guards.parts import require
from tests.guards.sleeps import fixed_sleeps

ROOT = Path(__file__).parents[2]
SOURCE = Path(llmgw.__file__).parent

PLANTED = f"""
import asyncio, os, socket, subprocess, sys, threading, time
import pytest

KEPT = []

def code_of(module, source):
    names = {{"asyncio": asyncio, "os": os, "time": time}}
    exec(compile(source, {str(SOURCE)!r} + "/" + module, "exec"), names)
    return names

def test_leaks_a_file():
    KEPT.append(open(os.devnull))

def test_leaks_a_socket():
    KEPT.append(socket.socket())

def test_leaks_an_event_loop():
    KEPT.append(asyncio.new_event_loop())

def test_leaks_a_process():
    KEPT.append(subprocess.Popen(["sleep", "600"]))

def test_finds_the_process_of_the_test_before_ended():
    assert KEPT[-1].wait(10) is not None

def test_leaks_the_session_of_a_dead_child():
    subprocess.run(["setsid", "--fork", "sleep", "601"], check=True)

def test_leaks_a_process_from_a_fixture(leaky):
    pass

@pytest.fixture
def leaky():
    KEPT.append(subprocess.Popen(["sleep", "602"]))

async def test_leaks_a_task():
    KEPT.append(asyncio.create_task(asyncio.Event().wait(), name="planted"))

def test_leaks_a_task_in_a_loop_of_its_own():
    async def main():
        KEPT.append(asyncio.create_task(asyncio.Event().wait(), name="planted"))
    asyncio.run(main())

async def test_blocks_the_loop():
    code_of("agent/planted.py", "def work(): time.sleep(0.001)")["work"]()

async def test_blocks_the_loop_and_hides_it():
    source = "def work():\\n try: open('/dev/null')\\n except Exception: pass"
    code_of("agent/planted.py", source)["work"]()

async def test_writes_a_file_from_elsewhere_in_the_gateway(tmp_path):
    with open(tmp_path / "file", "wb", buffering=0) as file:
        source = "def append(fd): os.fsync(fd)"
        code_of("gateway/planted.py", source)["append"](file.fileno())

# From here on all is well, and must be seen so.

async def test_the_journal_may_append(tmp_path):
    with open(tmp_path / "file", "wb", buffering=0) as file:
        source = "def append(fd): os.write(fd, b'x'); os.fsync(fd)"
        code_of("gateway/journal.py", source)["append"](file.fileno())

async def test_a_thread_may_block():
    await asyncio.to_thread(code_of("agent/planted.py", "def work(): time.sleep(0.001)")["work"])

def test_without_a_loop_all_may_block():
    code_of("agent/planted.py", "def work(): time.sleep(0.001)")["work"]()

@pytest.fixture(scope="module")
def shared():
    with subprocess.Popen(["sleep", "603"]) as process:
        yield process
        process.kill()

def test_may_use_what_lives_longer(shared):
    assert shared.poll() is None

def test_may_use_it_again(shared):
    assert shared.poll() is None

async def test_may_close_late():
    left, right = socket.socketpair()
    threading.Timer(0.05, lambda: (left.close(), right.close())).start()

@pytest.fixture
async def worker():
    task = asyncio.create_task(asyncio.Event().wait())
    yield task
    task.cancel()

async def test_may_have_tasks_that_a_fixture_ends(worker):
    assert not worker.done()
"""

OUTLIVES = """
import subprocess, pytest

@pytest.fixture(scope="session")
def forgotten():
    return subprocess.Popen(["sleep", "604"])

def test_uses_it(forgotten):
    pass
"""


def run_planted(folder: Path, source: str) -> str:
    """Run `source` under the guards and return what pytest printed."""
    (folder / "test_planted.py").write_text(source)
    settings = ["asyncio_mode = auto", "asyncio_default_fixture_loop_scope = function"]
    settings += ["filterwarnings = error", "guards_linger_s = 0.2"]
    (folder / "pytest.ini").write_text("\n".join(["[pytest]", *settings]))
    options = ["-q", "-rA", "-p", "no:cacheprovider", "-p", "tests.guards.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run all planted tests once."""
    return run_planted(tmp_path_factory.mktemp("planted"), PLANTED)


CAUGHT = {
    "test_leaks_a_file": r"leaked: descriptor \d+ \(/dev/null\)",
    "test_leaks_a_socket": r"leaked: descriptor \d+ \(socket:",
    "test_leaks_an_event_loop": r"leaked: descriptor \d+ \(anon_inode:\[eventpoll\]\)",
    "test_leaks_a_process": r"leaked: process \d+ \(sleep 600\)",
    "test_leaks_the_session_of_a_dead_child": r"leaked: process \d+ \(sleep 601\)",
    "test_leaks_a_process_from_a_fixture": r"leaked: process \d+ \(sleep 602\)",
    "test_leaks_a_task": r"abandoned: task planted \(Event\.wait\)",
    "test_leaks_a_task_in_a_loop_of_its_own": r"abandoned: task planted \(Event\.wait\)",
    "test_blocks_the_loop": r"call to time\.sleep, from agent/planted\.py:1 in work",
    "test_blocks_the_loop_and_hides_it": r"call to builtins\.open, from agent/planted\.py:2",
    "test_writes_a_file_from_elsewhere_in_the_gateway": r"call to os\.fsync, from gateway/planted",
}

# Not caught: these go on past a fault or have none.
PASSED = (
    "test_finds_the_process_of_the_test_before_ended",
    "test_the_journal_may_append",
    "test_a_thread_may_block",
    "test_without_a_loop_all_may_block",
    "test_may_use_what_lives_longer",
    "test_may_use_it_again",
    "test_may_close_late",
    "test_may_have_tasks_that_a_fixture_ends",
)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_fault_fails_its_test(name: str, outcome: str) -> None:
    pattern = rf"(?m)^(ERROR|FAILED) \S*test_planted\.py::{name} - .*{CAUGHT[name]}"
    assert re.search(pattern, outcome), outcome


@pytest.mark.parametrize("name", PASSED)
def test_what_is_allowed_passes(name: str, outcome: str) -> None:
    assert re.search(rf"(?m)^PASSED \S*test_planted\.py::{name}$", outcome), outcome
    assert not re.search(rf"(?m)^(ERROR|FAILED) \S*test_planted\.py::{name}\b", outcome), outcome


def test_a_process_that_outlives_the_run_fails_it(tmp_path: Path) -> None:
    outcome = run_planted(tmp_path, OUTLIVES)
    assert re.search(r"left when all tests had ended: process \d+ \(sleep 604\)", outcome), outcome
    assert "1 error" in outcome


def test_a_fixed_sleep_is_found_by_any_name() -> None:
    source = "\n".join(
        [
            "import asyncio, time as clock",
            "from asyncio import sleep as nap",
            "async def test_x():",
            "    await asyncio.sleep(0)",
            "    await asyncio.sleep(0.1)",
            "    await nap(delay)",
            "    clock.sleep(1)",
            "    await waiter.sleep(1)",
        ]
    )
    assert fixed_sleeps(source) == [5, 6, 7]


def test_a_missing_part_is_skipped_by_name_at_home_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="the moon is not here: wait for the night"):
        require("the moon", here=False, how="wait for the night")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="the moon is not here: wait for the night"):
        require("the moon", here=False, how="wait for the night")
    require("the moon", here=True, how="")
