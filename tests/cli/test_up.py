"""`llmgw up`, with real daemons and a real engine: it stops what it started, however it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.cli.exits import Exit
from llmgw.testing.tiny_gguf import make_tiny_gguf
from llmgw.testing.waiting import until
from tests.e2e.cluster import ENVIRONMENT, free_ports, processes_naming

pytestmark = pytest.mark.e2e

READY_S = 60.0
STOP_S = 60.0


class Machine:
    """One machine, known by its folder: whatever runs here names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "up"
        self.model = make_tiny_gguf(folder / "tiny.gguf")
        self.catalog = folder / "catalog.json"
        profile = {
            "name": "tiny-cpu",
            "engine": "llamacpp",
            "source": str(self.model),
            "arguments": ["--threads", "1"],
            "stop_grace_s": 2,
        }
        self.catalog.write_text(json.dumps({"models": [{"name": "tiny", "profiles": [profile]}]}))
        self.gateway_port, self.admin_port, agents_port, metrics_port, first = free_ports(5)
        self.settings = {
            "gateway_port": self.gateway_port,
            "admin_port": self.admin_port,
            "agents_port": agents_port,
            "metrics_port": metrics_port,
            "port_first": first,
            "port_last": first + 20,
        }
        self._up: list[subprocess.Popen[str]] = []

    def command(self, name: str, *words: str) -> list[str]:
        """Return a command on this machine."""
        argv = [sys.executable, "-m", "llmgw.cli", name, "--state-dir", str(self.state), *words]
        for setting, value in self.settings.items():
            argv += ["--set", f"{setting}={value}"]
        return argv

    def up(self, *words: str) -> subprocess.Popen[str]:
        """Start `llmgw up` in the foreground; what it says goes to a file."""
        with self.log.open("w") as log:
            started = subprocess.Popen(
                self.command("up", *words), env=ENVIRONMENT, stdout=log, stderr=log, text=True
            )
        self._up.append(started)
        return started

    @property
    def log(self) -> Path:
        return self.folder / "up.out"

    def said(self) -> str:
        """Return what the last `up` has said, and its daemons."""
        logs = [self.log, self.state / "serve.log", self.state / "agent.log"]
        return "\n".join(f"--- {f.name}\n{f.read_text()}" for f in logs if f.exists())

    def until_ready(self) -> None:
        until(lambda: "ready: http://" in self.log.read_text(), within_s=READY_S, saying=self.said)

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(name, *words),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )

    def ctl_command(self, *words: str) -> list[str]:
        """Return a command of the operator's."""
        key = self.state / "serve" / "admin.key"
        url = f"http://127.0.0.1:{self.admin_port}"
        argv = [sys.executable, "-m", "llmgw.cli", "ctl", "--url", url, "--key-file", str(key)]
        return [*argv, *words]

    def ctl(self, *words: str) -> object:
        """Ask the control plane."""
        done = subprocess.run(
            self.ctl_command(*words, "--json"),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=True,
        )
        return json.loads(done.stdout)

    def replicas(self) -> list[tuple[str, int, str]]:
        """Return id, incarnation and phase of all replicas."""
        found = self.ctl("replicas")
        assert isinstance(found, list)
        return [(one["replica"], one["incarnation"], one["phase"]) for one in found]

    def pid(self, daemon: str) -> int:
        """Return a daemon's pid, or the supervisor's; 0 where it is not running."""
        record = json.loads((self.state / "up.json").read_text())
        found = {**record["daemons"], "up": record["supervisor"]}.get(daemon)
        return int(found["pid"]) if found else 0

    def engines(self) -> list[int]:
        """Return the pids of all engines."""
        found = processes_naming(str(self.model))
        return [pid for pid, argv in found if "llmgw.apps.llama_server" in argv]

    def one_engine(self) -> int:
        """Return the pid of the only engine."""
        found = self.engines()
        assert len(found) == 1, f"{found}\n{self.running()}\n{self.said()}"
        return found[0]

    def running(self) -> list[tuple[int, str]]:
        """Return everything that runs here, daemons, runners and engines."""
        return processes_naming(str(self.folder))

    def close(self) -> None:
        """End everything, however the test ended."""
        until(self._is_empty, within_s=20, saying=lambda: str(self.running()))
        for started in self._up:
            started.wait(10)

    def _is_empty(self) -> bool:
        left = self.running()
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="llmgw-") as name:
        made = Machine(Path(name))
        try:
            yield made
        finally:
            made.close()


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)


def test_ctrl_c_stops_everything_and_the_next_start_begins_afresh(machine: Machine) -> None:
    up = machine.up("--catalog", str(machine.catalog))
    machine.until_ready()
    machine.one_engine()
    ((first, incarnation, _),) = machine.replicas()
    assert incarnation == 1
    up.send_signal(signal.SIGINT)
    assert up.wait(STOP_S) == Exit.DONE, machine.said()
    assert machine.running() == []
    assert "everything is stopped" in machine.said()
    # What is wanted was kept, and being stopped was no failure: no wait, no second incarnation.
    again = machine.up()
    machine.until_ready()
    ((second, incarnation, phase),) = machine.replicas()
    assert (incarnation, phase) == (1, "ready")
    assert second != first
    again.send_signal(signal.SIGTERM)
    assert again.wait(STOP_S) == Exit.DONE, machine.said()
    assert machine.running() == []


def test_detached_it_stays_and_down_stops_it(machine: Machine) -> None:
    done = machine.run("up", "--detach", "--catalog", str(machine.catalog))
    assert done.returncode == Exit.DONE, done.stderr + machine.said()
    assert f"http://127.0.0.1:{machine.gateway_port}/v1" in done.stderr
    machine.one_engine()
    logs = machine.said()
    for told in (
        f"the gateway serves http://127.0.0.1:{machine.gateway_port}/v1",
        f"the admin API listens on 127.0.0.1 port {machine.admin_port}",
        f"the admin key is in {machine.state}/serve/admin.key",
        "leads with term 1",
        "ready: this control plane",  # by then it may be a moment short of leading
        "ready: this is node",
        "joined",
    ):
        assert told in logs
    for words in ([], ["--detach"]):
        second = machine.run("up", "--catalog", str(machine.catalog), *words)
        assert second.returncode == Exit.RUNNING
        assert f"`llmgw down --state-dir {machine.state}` stops it" in second.stderr
        written = machine.state / "ctl.yaml"
        assert f"`llmgw ctl --config {written} apply {machine.catalog}`" in second.stderr
    assert_ctl_finds_it(machine)
    follow(machine)
    down = machine.run("down")
    assert down.returncode == Exit.DONE, down.stderr
    assert machine.running() == []
    assert "nothing runs" in machine.run("down").stderr
    assert not (machine.state / "ctl.yaml").exists()


def assert_ctl_finds_it(machine: Machine) -> None:
    """See that ctl needs nothing but what `up` was told by the environment."""
    environment = {**ENVIRONMENT, "LLMGW_UP_STATE_DIR": str(machine.state)}
    for words, more in (([], environment), (["--config", str(machine.state / "ctl.yaml")], {})):
        argv = [sys.executable, "-m", "llmgw.cli", "ctl", *words, "status", "--json"]
        done = subprocess.run(
            argv, env=more or ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == Exit.DONE, done.stderr
        assert json.loads(done.stdout)["replicas"] == {"ready": 1}


def follow(machine: Machine) -> None:
    """See that what follows shows what comes, and that Ctrl-C ends it as shells expect."""
    argv = machine.ctl_command("events", "-f", "-n", "1")
    with subprocess.Popen(argv, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        machine.ctl("keys", "create", "me")
        assert any("made for account default" in following.stdout.readline() for _ in range(20))
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == Exit.INTERRUPTED


def test_a_killed_up_leaves_all_running_and_the_next_takes_over_its_engines(
    machine: Machine,
) -> None:
    up = machine.up("--catalog", str(machine.catalog))
    machine.until_ready()
    engine, replica, serve = machine.one_engine(), machine.replicas(), machine.pid("serve")
    kill(machine.pid("up"))
    up.wait(10)
    assert machine.replicas() == replica
    again = machine.up()
    machine.until_ready()
    assert machine.pid("serve") != serve
    assert (machine.one_engine(), machine.replicas()) == (engine, replica)
    again.send_signal(signal.SIGINT)
    assert again.wait(STOP_S) == Exit.DONE, machine.said()
    assert machine.running() == []


def test_down_stops_what_killed_parts_have_left(machine: Machine) -> None:
    up = machine.up("--catalog", str(machine.catalog))
    machine.until_ready()
    (runner,) = (pid for pid, argv in machine.running() if "llmgw.runner" in argv)
    for pid in (machine.pid("up"), machine.pid("agent"), runner):
        kill(pid)
    up.wait(10)
    machine.one_engine()
    down = machine.run("down")
    assert down.returncode == Exit.DONE, down.stderr
    assert "killed" in down.stderr
    assert machine.running() == []


def test_a_killed_daemon_is_started_again_and_finds_the_engine(machine: Machine) -> None:
    up = machine.up("--catalog", str(machine.catalog))
    machine.until_ready()
    engine, serve, agent = machine.one_engine(), machine.pid("serve"), machine.pid("agent")
    kill(serve)
    kill(agent)
    until(lambda: machine.pid("serve") not in {0, serve}, within_s=20, saying=machine.said)
    until(lambda: machine.pid("agent") not in {0, agent}, within_s=20, saying=machine.said)
    assert "starting it again" in machine.said()
    until(lambda: is_ready(machine), within_s=30, saying=machine.said)
    assert machine.one_engine() == engine
    done = machine.run("down")
    assert done.returncode == Exit.DONE, done.stderr
    assert up.wait(10) == Exit.DONE
    assert machine.running() == []


def is_ready(machine: Machine) -> bool:
    """Whether the control plane answers, and its one replica is the first start and ready."""
    with contextlib.suppress(subprocess.CalledProcessError):
        return [(i, phase) for _, i, phase in machine.replicas()] == [(1, "ready")]
    return False


def test_ctrl_c_once_more_does_not_wait_for_what_hangs(machine: Machine) -> None:
    content = json.loads(machine.catalog.read_text())
    content["models"][0]["profiles"][0]["stop_grace_s"] = 600
    machine.catalog.write_text(json.dumps(content))
    up = machine.up("--catalog", str(machine.catalog))
    machine.until_ready()
    engine = machine.one_engine()
    os.kill(engine, signal.SIGSTOP)
    up.send_signal(signal.SIGINT)
    until(lambda: "(tiny)" in machine.log.read_text(), within_s=STOP_S, saying=machine.said)
    up.send_signal(signal.SIGINT)
    assert up.wait(STOP_S) == Exit.DONE, machine.said()
    assert "killed" in machine.log.read_text()
    assert machine.running() == []


def test_a_taken_port_is_said_at_once_and_nothing_joins_whoever_has_it(machine: Machine) -> None:
    with socket_on(machine.gateway_port):
        for words in ([], ["--detach"]):
            done = machine.run("up", "--catalog", str(machine.catalog), *words)
            assert done.returncode == Exit.FAILED
            assert f"cannot listen on 127.0.0.1:{machine.gateway_port}" in done.stderr
            assert machine.running() == []
    assert not (machine.state / "agent").exists()


@pytest.mark.parametrize("setting", ["gateway_port", "admin_port", "agents_port", "metrics_port"])
def test_why_a_daemon_cannot_start_is_one_sentence_with_the_setting_detached_too(
    machine: Machine, setting: str
) -> None:
    port = machine.settings[setting]
    # What an earlier life has written is no news.
    machine.state.mkdir()
    for log in ("serve.log", "agent.log", "up.log"):
        (machine.state / log).write_text("llmgw: an old story\n" * 10)
    with socket_on(port):
        for words in ([], ["--detach", "--timeout", "30"]):
            done = machine.run("up", "--catalog", str(machine.catalog), *words)
            assert done.returncode == Exit.FAILED, done.stderr
            (told,) = (line for line in done.stderr.splitlines() if line.startswith("llmgw: "))
            assert done.stderr.count("cannot listen") == 1, done.stderr
            for word in ("cannot start", str(port), "Address already in use", f"`{setting}`"):
                assert word in told
            for noise in ("old story", "add_port", "nothing answers", "ready: "):
                assert noise not in done.stderr


@contextlib.contextmanager
def socket_on(port: int) -> Iterator[None]:
    import socket

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


def test_a_catalog_that_cannot_be_used_starts_nothing(machine: Machine) -> None:
    machine.catalog.write_text('{"models": [{"name": "tiny", "profiles": [{"name": "x"}]}]}')
    done = machine.run("up", "--catalog", str(machine.catalog))
    assert done.returncode == Exit.USAGE
    assert "engine" in done.stderr
    assert not machine.state.exists()


def test_models_that_are_late_have_an_exit_code_and_go_on_in_the_background(
    machine: Machine,
) -> None:
    content = json.loads(machine.catalog.read_text())
    content["models"][0]["profiles"][0]["gpus_per_node"] = 64
    machine.catalog.write_text(json.dumps(content))
    done = machine.run("up", "--detach", "--catalog", str(machine.catalog), "--timeout", "2")
    assert done.returncode == Exit.LATE, done.stderr
    assert "tiny-cpu: missing" in done.stderr
    assert machine.pid("serve")
    assert machine.run("down").returncode == Exit.DONE
    assert machine.running() == []


def test_the_demo_fails_where_the_answer_is_none_and_stops_everything(machine: Machine) -> None:
    argv = [sys.executable, "-m", "llmgw.cli", "demo", "--once"]
    argv += ["--model", str(machine.model), "--state-dir", str(machine.state)]
    done = subprocess.run(
        argv, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == Exit.FAILED
    assert "does not hold the word 'scatter'" in done.stderr
    assert "tokens counted)" in done.stderr
    assert "llmgw ctl" not in done.stderr
    assert len(done.stdout) > 20
    assert machine.running() == []
