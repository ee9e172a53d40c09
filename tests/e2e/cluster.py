"""Real daemons of llmgw as processes, on ports and a folder of their own, to be killed in any way.

What runs is read from /proc, never from llmgw: an engine is a process whose command line names
this cluster's model file, a runner one that names its state folder.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from llmgw.testing.waiting import until

START_S: Final = 30.0
READY_S: Final = 45.0
MODEL: Final = "tiny"
PORTS_FIRST: Final = 10000
PORTS_PER_WORKER: Final = 2500
WORKERS_MAX: Final = 8
"""As many as scripts/test starts."""
ENVIRONMENT: Final = {
    name: value
    for name, value in os.environ.items()
    if name in {"PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH"}
}


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on, below the range from which the kernel takes its own.

    Each worker of a test run has a block of its own: what one has looked up and not bound yet,
    another would find free, too.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = PORTS_FIRST + worker % WORKERS_MAX * PORTS_PER_WORKER + os.getpid() % 20 * 100
    found: list[int] = []
    with contextlib.ExitStack() as held:
        candidates = iter(range(first, PORTS_FIRST + WORKERS_MAX * PORTS_PER_WORKER))
        while len(found) < count:
            one = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port := next(candidates)))
                found.append(port)
    return found


@dataclass(slots=True)
class Stream:
    """A streamed answer that is being read in a thread."""

    thread: threading.Thread
    lines: list[str] = field(default_factory=list)
    status: int | None = None
    error: Exception | None = None

    def finish(self, within_s: float = 60.0) -> list[str]:
        """Return all data lines once the stream has ended well."""
        self.thread.join(within_s)
        assert not self.thread.is_alive(), f"the stream goes on after {within_s} s"
        assert self.error is None, f"the stream broke: {self.error!r} after {self.lines[-2:]}"
        assert self.status == 200, (self.status, self.lines)
        return self.lines


class Cluster:
    """One control node and one GPU node, both this machine."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.model = model
        self.gateway_port, self.admin_port, self.agents_port, self.metrics_port, admin2 = (
            free_ports(5)
        )
        self._gateway_admin_port = admin2
        first = free_ports(6)[5]
        self.range = (first, first + 40)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.key = ""
        self.pace: dict[str, object] = {"heartbeat_s": 0.5, "silent_after_s": 3.0}
        """So that tests need not wait as long as operators would."""

    # -- daemons

    def serve(self, *, gateway: bool = True, **settings: object) -> None:
        """Start the control plane."""
        self._start(
            "serve",
            "serve",
            state_dir=self.folder / "serve",
            gateway=gateway,
            gateway_port=self.gateway_port,
            admin_port=self.admin_port,
            agents_port=self.agents_port,
            **{**self.pace, **settings},
        )

    def agent(self, process: str = "agent", **settings: object) -> None:
        """Start the agent, or another one on the same state."""
        self._start(
            process,
            "agent",
            state_dir=self.folder / "agent",
            name="node1",
            control=f"127.0.0.1:{self.agents_port}",
            address="127.0.0.1",
            port_first=self.range[0],
            port_last=self.range[1],
            metrics_port=self.metrics_port,
            **settings,
        )

    def gateway(self) -> None:
        """Start a gateway of its own."""
        self._start(
            "gateway",
            "gateway",
            state_dir=self.folder / "gateway",
            control=f"127.0.0.1:{self.agents_port}",
            port=self.gateway_port,
            admin_port=self._gateway_admin_port,
        )

    def _start(self, process: str, app: str, **settings: object) -> None:
        words = [f"{key}={_text(value)}" for key, value in settings.items()]
        argv = [sys.executable, "-m", "llmgw.cli", app]
        for word in words:
            argv += ["--set", word]
        log = self.folder / f"{process}.log"
        with log.open("ab") as out:
            self.processes[process] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=ENVIRONMENT,
                start_new_session=True,
            )

    def kill(self, *names: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to daemons and wait for their ends where it is one."""
        for name in names:
            self.processes[name].send_signal(sig)
        if sig in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}:
            for name in names:
                self.processes.pop(name).wait(30)

    def log(self, name: str) -> str:
        """Return what a daemon wrote."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def close(self) -> None:
        """End everything that names this cluster, however it came to be."""
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        until(self._nothing_left, within_s=15, saying=lambda: str(self.runners() + self.engines()))

    def _nothing_left(self) -> bool:
        left = [pid for pid, _ in processes_naming(str(self.folder))] + self.engines()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError, InterruptedError):
                os.waitpid(pid, os.WNOHANG)
        return not left

    # -- what runs

    def engines(self) -> list[int]:
        """Return the pids of all engines that serve this cluster's model."""
        return sorted(
            pid
            for pid, argv in processes_naming(str(self.model))
            if "llmgw.cli" not in argv and "llmgw.runner" not in argv
        )

    def runners(self) -> list[int]:
        """Return the pids of this cluster's runners."""
        found = processes_naming(str(self.folder / "agent"))
        return sorted(pid for pid, argv in found if "llmgw.runner" in argv)

    def one_engine(self) -> int:
        """Return the pid of the only engine; fail if there is none or more than one."""
        found = self.engines()
        assert len(found) == 1, f"engines: {found}\n{self.state()}"
        return found[0]

    # -- operating

    def admin(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Ask the admin API."""
        key = (self.folder / "serve" / "admin.key").read_text().strip()
        return httpx.request(
            method,
            f"http://127.0.0.1:{self.admin_port}{path}",
            json=body,
            headers={"Authorization": f"Bearer {key}"},
            timeout=10.0,
        )

    def ctl(self, *words: str, within_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run `llmgw ctl`."""
        environment = {
            **ENVIRONMENT,
            "LLMGW_CTL_URL": f"http://127.0.0.1:{self.admin_port}",
            "LLMGW_CTL_KEY_FILE": str(self.folder / "serve" / "admin.key"),
        }
        return subprocess.run(
            [sys.executable, "-m", "llmgw.cli", "ctl", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    def ctl_json(self, *words: str) -> object:
        """Run `llmgw ctl ... --json` and return what it says."""
        done = self.ctl(*words, "--json")
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def catalog(self, replicas: int = 1, **profile: object) -> Path:
        """Write a catalog file with the tiny model and return it."""
        entry = {
            "name": "tiny-cpu",
            "engine": "llamacpp",
            "source": str(self.model),
            "replicas": replicas,
            "arguments": ["--threads", "1"],
            "stop_grace_s": 2,
            "drain_s_max": 5,
            **profile,
        }
        models = [{"name": MODEL, "profiles": [entry]}] if replicas >= 0 else []
        file = self.folder / "catalog.json"
        file.write_text(json.dumps({"models": models}))
        return file

    def apply(self, file: Path) -> None:
        """Apply a catalog file."""
        done = self.ctl("apply", str(file))
        assert done.returncode == 0, (done.stdout, done.stderr)

    def up_to_ready(self, *, gateway_inside: bool = True) -> None:
        """Start all daemons with one replica, and wait until it answers through the gateway."""
        self.serve(gateway=gateway_inside)
        self.agent()
        if not gateway_inside:
            self.gateway()
        self.wait_for_admin()
        self.make_key()
        self.apply(self.catalog())
        self.wait_for_answer()

    def make_key(self) -> None:
        """Make the API key that this cluster's client uses."""
        made = self.ctl_json("keys", "create", "test")
        assert isinstance(made, dict)
        self.key = str(made["key"])

    def storeless(self) -> None:
        """Start both daemons from a catalog file alone."""
        self.key = "sk-of-this-test"
        file = self.catalog()
        content = json.loads(file.read_text())
        content["nodes"] = ["node1"]
        hashed = hashlib.sha256(self.key.encode()).hexdigest()
        content["keys"] = [{"id": "test", "hash": hashed, "account": "test"}]
        file.write_text(json.dumps(content))
        self.serve(store="none", catalog=file)
        self.agent()

    def replicas(self) -> list[dict[str, object]]:
        """Return the replicas as the control plane has them."""
        return _listed(self.admin("GET", "/admin/v1/replicas").json())

    def events(self) -> list[dict[str, str]]:
        """Return what has happened."""
        return _listed(self.admin("GET", "/admin/v1/events").json())

    def node_is_heard(self) -> bool:
        """Whether the node's agent is connected and has reported."""
        nodes = _listed(self.admin("GET", "/admin/v1/nodes").json())
        return [node["state"] for node in nodes] == ["heard"]

    def wait_for_admin(self) -> None:
        """Wait until the control plane answers operators."""

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError, OSError):
                return self.admin("GET", "/healthz").status_code == 200
            return False

        until(answers, within_s=START_S, saying=self.state)

    def wait_for_answer(self, within_s: float = READY_S) -> None:
        """Wait until a request is answered."""

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return self.ask().status_code == 200
            return False

        until(answers, within_s=within_s, saying=self.state)

    def state(self) -> str:
        """Say how things are, for a failure's message."""
        tails = [f"--- {n}\n" + self.log(n)[-3000:] for n in ("serve", "agent", "gateway")]
        seen = f"engines {self.engines()} runners {self.runners()}"
        return "\n".join([seen, *tails])

    # -- being a client

    def ask(self, tokens: int = 4) -> httpx.Response:
        """Ask for a short answer."""
        return httpx.post(self._url, json=_question(tokens), headers=self._headers, timeout=30.0)

    def stream(self, tokens: int) -> Stream:
        """Begin to read a streamed answer of so many tokens; returns at its first line."""
        stream = Stream(threading.Thread())

        def read() -> None:
            body = {**_question(tokens), "stream": True, "stream_options": {"include_usage": True}}
            try:
                with httpx.stream(
                    "POST", self._url, json=body, headers=self._headers, timeout=30.0
                ) as answer:
                    stream.status = answer.status_code
                    for line in answer.iter_lines():
                        if line.startswith("data:"):
                            stream.lines.append(line)
            except (httpx.HTTPError, OSError) as error:
                stream.error = error

        stream.thread = threading.Thread(target=read, daemon=True)
        stream.thread.start()
        until(
            lambda: bool(stream.lines) or not stream.thread.is_alive(),
            within_s=30,
            saying=self.state,
        )
        return stream

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}/v1/chat/completions"

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


def processes_naming(text: str) -> list[tuple[int, str]]:
    """Return living processes whose command line contains a text, with that line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                argv = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if text in argv and int(entry.name) != os.getpid():
                    found.append((int(entry.name), argv))
    return found


def _question(tokens: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "temperature": 0,
    }


def _listed(answer: Any) -> list[Any]:
    """Take the one list out of an answer."""
    if isinstance(answer, dict):
        (answer,) = (value for value in answer.values() if isinstance(value, list))
    assert isinstance(answer, list), answer
    return answer


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
