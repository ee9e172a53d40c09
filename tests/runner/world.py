"""A place for runners and strangers in tests: real processes, none of which outlives the test."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from llmgw.runner.record import (
    Command,
    Identity,
    Launch,
    Phase,
    Process,
    Record,
    Rendezvous,
    all_processes,
    identity_path,
    read_identity,
    read_record,
    write_launch,
)
from llmgw.runner.socket import Client, StatusReply

_ENTER = 'echo $$ > "$0" && exec "$@"'
SHELL_PATH = "/usr/local/bin:/usr/bin:/bin"


def wait(
    condition: Callable[[], bool], within_s: float = 8.0, saying: Callable[[], str] = str
) -> None:
    """Wait for a condition, with a deadline; outside an event loop, since the door blocks."""
    pause = threading.Event()
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {saying()}"
        pause.wait(0.01)


def sh(name: str, script: str, *, waits: bool = False, **env: str) -> Command:
    """A command that runs a shell script."""
    argv = ("/bin/sh", "-c", script)
    return Command(name, argv, {"PATH": SHELL_PATH, **env}, waits_for_rendezvous=waits)


def py(name: str, script: str, **env: str) -> Command:
    """A command that runs a Python script."""
    return Command(name, (sys.executable, "-S", "-E", "-c", script), env)


def is_alive(pid: int) -> bool:
    """Whether a process lives; zombies do not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in (b"Z", b"X")


def pids_in(path: Path) -> list[int]:
    """The pids that processes wrote into a file, one a line."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


class Shard:
    """One shard directory and the runners started on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.errors = directory.parent / f"{directory.name}.stderr"
        self.runners: list[subprocess.Popen[bytes]] = []

    @property
    def runner(self) -> subprocess.Popen[bytes]:
        return self.runners[-1]

    def prepare(self, *commands: Command, **members: object) -> Self:
        launch = {"grace_s": 5.0, **members}
        rendezvous = launch.pop("rendezvous", None)
        assert rendezvous is None or isinstance(rendezvous, Rendezvous)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_launch(self.directory, _launch(commands, rendezvous, launch))
        return self

    def spawn(
        self,
        *,
        env: dict[str, str] | None = None,
        isolated: bool = True,
        inside: Path | None = None,
    ) -> Self:
        """Start a runner; `inside` is a cgroup to start it in."""
        options = ["-I"] if isolated else ["-P"]
        enter = [] if inside is None else ["/bin/sh", "-c", _ENTER, str(inside / "cgroup.procs")]
        with self.errors.open("ab") as errors:
            runner = subprocess.Popen(
                [*enter, sys.executable, *options, "-m", "llmgw.runner", str(self.directory)],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd="/",
                env=env,
            )
        self.runners.append(runner)
        return self

    def start(self, *commands: Command, **members: object) -> Self:
        """Start a runner and wait until the engine runs."""
        self.prepare(*commands, **members).spawn()
        return self.until(Phase.RUNNING)

    def until(self, phase: Phase, within_s: float = 8.0) -> Self:
        wait(lambda: self.phase() is phase, within_s, lambda: f"{self.phase()} {self.said()}")
        return self

    def phase(self) -> Phase | None:
        try:
            return self.record().phase
        except FileNotFoundError:
            return None

    def record(self) -> Record:
        return read_record(self.directory)

    def identity(self) -> Identity:
        return read_identity(identity_path(self.directory))

    def pid(self, name: str) -> int:
        state = self.record().command(name)
        assert state is not None
        return state.pid

    def said(self) -> str:
        return self.errors.read_text() if self.errors.exists() else ""

    def log(self) -> str:
        texts = []
        for file in sorted((self.directory / "logs").glob("shard.*.log")):
            with contextlib.suppress(FileNotFoundError):  # rotated away just now
                texts.append(file.read_text(errors="replace"))
        return "".join(texts)

    def status(self) -> StatusReply:
        with self.client() as client:
            return client.status()

    def client(self) -> Client:
        wait(self._answers, saying=self.said)
        return Client(self.directory)

    def _answers(self) -> bool:
        try:
            Client(self.directory).close()
        except OSError:
            return False
        return True

    def stop(self, grace_s: float | None = None) -> Record:
        """Stop, and wait for the runner's end."""
        with self.client() as client:
            client.stop(grace_s)
        assert self.runner.wait(8) == 0, self.said()
        return self.record()

    def kill_runner(self) -> None:
        self.runner.kill()
        self.runner.wait(5)


def _launch(
    commands: tuple[Command, ...], rendezvous: Rendezvous | None, members: dict[str, object]
) -> Launch:
    blank = members.get("blank", ())
    assert isinstance(blank, tuple)
    grace_s, bytes_max = members["grace_s"], members.get("log_bytes_max", 1 << 20)
    files_max = members.get("log_files_max", 3)
    assert isinstance(grace_s, float)
    assert isinstance(bytes_max, int)
    assert isinstance(files_max, int)
    return Launch(commands, blank, rendezvous, grace_s, bytes_max, files_max)


class World:
    """Ends all that its tests started: orphans too come to this process (see tests.guards)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shards: list[Shard] = []
        self._others: list[subprocess.Popen[bytes]] = []
        self._before = {child.pid for child in self._children()}

    def shard(self, name: str = "r7k2m9x4qd.1.0") -> Shard:
        shard = Shard(self.root / name)
        self._shards.append(shard)
        return shard

    def stranger(self, *, new_session: bool = False) -> subprocess.Popen[bytes]:
        """A process that has nothing to do with any shard, and tells which signals it gets."""
        heard = self.root / "heard"
        script = (
            f"for s in TERM INT HUP CONT; do trap 'echo '$s' >> {heard}' $s; done; "
            "echo ready; while :; do sleep 0.02; done"
        )
        stranger = self.process(
            ["/bin/sh", "-c", script], stdout=subprocess.PIPE, new_session=new_session
        )
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"ready\n"
        stranger.stdout.close()
        return stranger

    def process(
        self, argv: list[str], *, stdout: int | None = None, new_session: bool = False
    ) -> subprocess.Popen[bytes]:
        """Any other process; it ends with the world."""
        process = subprocess.Popen(argv, stdout=stdout, start_new_session=new_session)
        self._others.append(process)
        return process

    def heard(self) -> str:
        """What strangers were told; nothing, if all is well."""
        path = self.root / "heard"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        deadline_s = time.monotonic() + 5
        while children := [c for c in self._children() if c.pid not in self._before]:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)
            assert time.monotonic() < deadline_s, f"processes do not end: {children}"
        for process in [*self._others, *(r for shard in self._shards for r in shard.runners)]:
            process.poll()

    @staticmethod
    def _children() -> list[Process]:
        own = os.getpid()
        return [process for process in all_processes() if process.ppid == own]


@contextlib.contextmanager
def world_in(root: Path) -> Iterator[World]:
    """A world that ends with the block."""
    world = World(root)
    try:
        yield world
    finally:
        world.end()


def edit_json(path: str | Path, **members: object) -> None:
    """Change members of a JSON file; None removes one."""
    document = json.loads(Path(path).read_text())
    document.update(members)
    document = {name: value for name, value in document.items() if value is not None}
    Path(path).write_text(json.dumps(document))
