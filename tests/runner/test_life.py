"""A shard from its start to its end, with real processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import llmgw.runner
from llmgw.runner.record import Command, ExitCode, Phase, Rendezvous, members
from llmgw.runner.socket import Client
from tests.runner.world import World, is_alive, pids_in, py, sh, wait

SLEEPS = "while :; do sleep 0.05; done"


def test_an_exit_that_nobody_asked_for_is_a_failure_whatever_its_code(world: World) -> None:
    shard = world.shard().start(sh("engine", "sleep 0.1; exit 0"))
    assert shard.runner.wait(5) == ExitCode.ENDED
    record = shard.record()
    assert record.phase is Phase.ENDED
    assert record.exit is not None
    assert (record.exit.command, record.exit.status, record.exit.asked) == ("engine", 0, False)
    assert "without being asked (exit status 0)" in record.exit.why


def test_an_exit_is_noticed_when_it_happens(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    with shard.client() as client:
        changes = client.watch()
        assert next(changes).phase is Phase.RUNNING
        os.kill(shard.pid("engine"), signal.SIGKILL)
        killed_s = time.monotonic()
        told = next(changes)
        # What this distinguishes is being told from a look every few seconds.
        assert time.monotonic() - killed_s < 1.0
        assert told.exit is not None
        assert told.exit.status == -signal.SIGKILL
        assert "SIGKILL" in told.exit.why
        assert [record.phase for record in changes][-1] is Phase.ENDED


def test_a_sidecar_that_ends_first_is_the_failure_and_the_engine_is_asked(world: World) -> None:
    heard = world.root / "heard-by-engine"
    engine = sh("engine", f"trap 'echo TERM > {heard}; exit 0' TERM; {SLEEPS}")
    shard = world.shard().start(sh("ray", "sleep 0.3; exit 3"), engine)
    assert shard.runner.wait(5) == 0
    record = shard.record()
    assert record.exit is not None
    assert (record.exit.command, record.exit.status, record.exit.asked) == ("ray", 3, False)
    assert "the sidecar ray ended before the engine" in record.why
    assert heard.read_text() == "TERM\n"


def test_a_stop_asks_the_engine_waits_for_it_and_then_asks_the_sidecars(world: World) -> None:
    order = world.root / "order"

    def polite(name: str) -> str:
        leave = f"echo {name}-asked >> {order}; sleep 0.15; echo {name}-ends >> {order}; exit 0"
        return f"trap '{leave}' TERM; {SLEEPS}"

    shard = world.shard().start(sh("ray", polite("ray")), sh("engine", polite("engine")))
    record = shard.stop()
    assert order.read_text().split() == ["engine-asked", "engine-ends", "ray-asked", "ray-ends"]
    assert record.exit is not None
    assert (record.exit.asked, record.exit.status) == (True, 0)


def test_an_engine_that_ignores_sigterm_is_killed_after_its_grace(world: World) -> None:
    shard = world.shard().start(sh("engine", f"trap '' TERM; {SLEEPS}"))
    engine, began_s = shard.pid("engine"), time.monotonic()
    with shard.client() as client:
        assert client.stop(0.4).phase is Phase.STOPPING
        assert client.stop(0.4).stop_asked  # asking again is harmless
    assert shard.runner.wait(5) == 0
    assert time.monotonic() - began_s >= 0.4
    record = shard.record()
    assert record.exit is not None
    assert record.exit.status == -signal.SIGKILL
    assert "engine did not end within 0.4 s of SIGTERM and was killed" in record.why
    assert not is_alive(engine)


def test_a_second_stop_with_a_shorter_grace_counts(world: World) -> None:
    shard = world.shard().start(sh("engine", f"trap '' TERM; {SLEEPS}"), grace_s=60.0)
    with shard.client() as client:
        client.stop()
    shard.stop(0.0)


def test_nothing_is_waited_for_that_has_already_ended(world: World) -> None:
    commands = (sh("ray", "exit 1"), sh("engine", "exit 1"))
    shard = world.shard().prepare(*commands, grace_s=60.0).spawn()
    assert shard.runner.wait(5) == 0


def test_descendants_that_ignore_sigterm_escape_the_session_or_lose_their_parent_are_killed(
    world: World,
) -> None:
    pids = world.root / "pids"
    script = f"""
import os, signal, time
def keep():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open({str(pids)!r}, "a") as file:
        file.write(str(os.getpid()) + chr(10))
    while True:
        time.sleep(1)
if os.fork() == 0:          # ignores SIGTERM
    keep()
if os.fork() == 0:          # a session of its own
    os.setsid()
    keep()
if os.fork() == 0:          # forks twice: an orphan, in a session of its own
    os.setsid()
    if os.fork() == 0:
        keep()
    os._exit(0)
if os.fork() == 0:          # overwrites its title with what looks like another process
    open("/proc/self/comm", "w").write("x) Z 1 1 1 (")
    keep()
if os.fork() == 0:          # leaves zombies behind
    for _ in range(3):
        if os.fork() == 0:
            os._exit(0)
    keep()
time.sleep(60)
"""
    shard = world.shard().start(py("engine", script))
    wait(lambda: len(pids_in(pids)) == 5)
    wait(lambda: shard.status().memory.processes == 6)
    shard.stop(0.2)
    assert not [pid for pid in pids_in(pids) if is_alive(pid)]


def test_processes_that_an_engine_leaves_behind_are_killed_when_it_ends(world: World) -> None:
    pids = world.root / "pids"
    orphan = f"(trap '' TERM; echo $$ > /dev/null; while :; do sleep 0.05; done) & echo $! > {pids}"
    shard = world.shard().start(sh("engine", f"{orphan}; sleep 0.2; exit 1"))
    assert shard.runner.wait(5) == 0
    assert len(pids_in(pids)) == 1
    assert not is_alive(pids_in(pids)[0])


def test_a_runner_told_to_end_ends_its_shard(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    engine = shard.pid("engine")
    shard.runner.terminate()
    assert shard.runner.wait(5) == 0
    assert shard.record().stop_asked
    assert not is_alive(engine)


def test_an_engine_that_kills_its_process_group_does_not_hit_the_runner(world: World) -> None:
    shard = world.shard().start(sh("engine", "sleep 0.1; kill -KILL 0"))
    assert shard.runner.wait(5) == 0
    end = shard.record().exit
    assert end is not None
    assert end.status == -signal.SIGKILL


def test_a_command_gets_its_environment_no_descriptors_and_plain_signals(world: World) -> None:
    seen = world.root / "seen"
    script = f"""
import os, signal, time
facts = [sorted(os.environ.items()), sorted(os.listdir("/proc/self/fd"))[:-1]]
facts += [os.readlink("/proc/self/fd/0"), os.getcwd(), os.getpgid(0) == os.getpid()]
status = open("/proc/self/status").read()
facts += [line.split()[1] for line in status.splitlines() if line[:6] in ("SigBlk", "SigIgn")]
open({str(seen)!r} + ".part", "w").write(repr(facts))
os.rename({str(seen)!r} + ".part", {str(seen)!r})
time.sleep(60)
"""
    command = py("engine", script, KEY="sk-1", LC_ALL="C")
    shard = world.shard().start(Command(command.name, command.argv, command.env, cwd="/usr"))
    wait(seen.exists)
    # Python itself ignores SIGPIPE (13) and SIGXFSZ (25) in the child: nothing else may be.
    assert seen.read_text() == repr(
        [
            [("KEY", "sk-1"), ("LC_ALL", "C")],
            ["0", "1", "2"],
            "/dev/null",
            "/usr",
            True,
            "0" * 16,
            "0000000001001000",
        ]
    )
    stat = Path(f"/proc/{shard.pid('engine')}/stat").read_text().split()
    assert int(stat[5]) == shard.runner.pid == shard.identity().runner.id
    shard.stop()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (Command("engine", ("/nowhere/vllm",), {}), "/nowhere/vllm: No such file"),
        (Command("engine", ("vllm-nowhere",), {"PATH": "/bin"}), "'vllm-nowhere' in PATH=/bin"),
        (Command("engine", ("/etc/passwd",), {}), "/etc/passwd: Permission denied; make it an"),
        (Command("engine", ("/bin/true", "x" * (1 << 20)), {}), "Argument list too long"),
        (Command("engine", ("/bin/true",), {}, cwd="/nowhere"), "changing to /nowhere"),
        (Command("engine", ("/bin/true", "a\0b"), {}), "Invalid argument"),
    ],
)
def test_a_command_that_cannot_start_says_what_which_file_and_leaves_nothing(
    world: World, command: Command, says: str
) -> None:
    shard = world.shard().prepare(sh("ray", SLEEPS), command).spawn()
    assert shard.runner.wait(5) == 0
    record = shard.record()
    assert record.phase is Phase.ENDED
    assert record.exit is not None
    assert (record.exit.command, record.exit.asked) == ("engine", False)
    assert says in record.why
    assert not is_alive(shard.pid("ray"))


def test_a_worker_starts_when_the_rendezvous_listens(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    meeting = Rendezvous("127.0.0.1", port, 30.0)
    shard = world.shard().prepare(sh("engine", SLEEPS, waits=True), rendezvous=meeting).spawn()
    shard.until(Phase.WAITING)
    wait(lambda: f"127.0.0.1:{port}" in shard.record().why)
    assert shard.record().commands == ()
    with socket.create_server(("127.0.0.1", port)):
        shard.until(Phase.RUNNING)
    shard.stop()


def test_a_rendezvous_that_never_listens_is_a_named_failure(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    meeting = Rendezvous("127.0.0.1", port, 0.3)
    shard = world.shard().prepare(sh("engine", SLEEPS, waits=True), rendezvous=meeting).spawn()
    assert shard.runner.wait(5) == 0
    record = shard.record()
    assert f"nothing listened on the rendezvous 127.0.0.1:{port} within 0.3 s" in record.why
    assert "Connection refused" in record.why
    assert record.commands == ()


def test_a_stop_while_waiting_for_the_rendezvous_starts_nothing(world: World) -> None:
    meeting = Rendezvous("127.0.0.1", 9, 30.0)
    shard = world.shard().prepare(sh("engine", SLEEPS, waits=True), rendezvous=meeting).spawn()
    record = shard.stop()
    assert record.exit is not None
    assert record.exit.asked
    assert record.why == "stopped as asked before the engine was started"
    assert record.commands == ()


def test_a_second_runner_for_a_directory_is_refused(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    first, engine = shard.runner, shard.pid("engine")
    shard.spawn()
    assert shard.runner.wait(5) == ExitCode.OWNED
    assert "belongs to another runner" in shard.said()
    (shard.directory / "lock").unlink()
    shard.spawn()
    assert shard.runner.wait(5) == ExitCode.OWNED
    assert "although its lock is free" in shard.said()
    assert first.poll() is None
    assert is_alive(engine)
    shard.runners = [first]
    shard.stop()


def test_a_shard_that_has_ended_never_starts_again(world: World) -> None:
    started = world.root / "started"
    shard = world.shard().start(sh("engine", f"echo $$ >> {started}; {SLEEPS}"))
    shard.stop()
    shard.spawn()
    assert shard.runner.wait(5) == ExitCode.ENDED_BEFORE
    assert len(pids_in(started)) == 1


def test_an_unreadable_launch_ends_the_shard_with_that_reason(world: World) -> None:
    shard = world.shard().prepare(sh("engine", SLEEPS))
    (shard.directory / "launch.json").write_text('{"commands": [')
    shard.spawn()
    assert shard.runner.wait(5) == ExitCode.BROKEN
    assert shard.record().phase is Phase.ENDED
    assert "launch.json" in shard.record().why


def test_an_upgrade_under_a_runner_changes_nothing(world: World) -> None:
    package = world.root / "site" / "llmgw"
    package.mkdir(parents=True)
    shutil.copy(Path(llmgw.runner.__path__[0]).parent / "__init__.py", package)
    shutil.copytree(llmgw.runner.__path__[0], package / "runner")
    shard = world.shard().prepare(sh("ray", SLEEPS), sh("engine", SLEEPS, waits=True),
                                  rendezvous=Rendezvous("127.0.0.1", 9, 30.0))  # fmt: skip
    shard.spawn(env={"PYTHONPATH": str(package.parent)}, isolated=False).until(Phase.WAITING)
    shard.client().close()
    shutil.rmtree(package.parent)
    with shard.client() as client:
        client.status()
        client.tail()
        client.send(b"garbage\n")
    shard.stop()
    assert shard.runner.returncode == 0, shard.said()


def test_engines_live_on_when_the_one_who_spawned_the_runner_is_killed(world: World) -> None:
    shard = world.shard().prepare(sh("engine", SLEEPS))
    spawner = os.fork()
    if spawner == 0:  # as an agent would, and is killed at once
        arguments = [sys.executable, "-I", "-m", "llmgw.runner", str(shard.directory)]
        pid = os.posix_spawn(sys.executable, arguments, {}, setsid=True)
        os.kill(os.getpid() if pid else 0, signal.SIGKILL)
    os.waitpid(spawner, 0)
    shard.until(Phase.RUNNING)
    runner = shard.identity().runner.pid
    assert is_alive(runner)
    with Client(shard.directory) as client:
        client.stop()
    shard.until(Phase.ENDED)
    wait(lambda: not is_alive(runner))


def test_the_runner_itself_stays_small(world: World) -> None:
    shard = world.shard().start(sh("engine", f"seq 1 20000; {SLEEPS}"))
    wait(lambda: " 20000\n" in shard.log())
    shows = "import time; print(open('/proc/self/smaps_rollup').read(), flush=True); time.sleep(60)"
    bare = world.shard("bare").start(py("engine", shows))
    wait(lambda: "Private_Dirty" in bare.log())
    dirty = next(line for line in bare.log().splitlines() if "Private_Dirty" in line)
    bare_uss = int(dirty.split()[-2]) * 1024
    assert shard.status().memory.runner_uss_bytes - bare_uss < 8_000_000
    assert not members(shard.identity()).unsure
    shard.stop()
    bare.stop()


def test_a_runner_that_cannot_lead_a_session_says_how_to_start_it(world: World) -> None:
    shard = world.shard().prepare(sh("engine", SLEEPS))
    argv = [sys.executable, "-I", "-m", "llmgw.runner", str(shard.directory)]
    runner = subprocess.run(argv, process_group=0, capture_output=True, check=False, timeout=8)
    assert runner.returncode == ExitCode.USAGE
    assert b"start it as the leader of a new session" in runner.stderr
    assert not (shard.directory / "record.json").exists()
