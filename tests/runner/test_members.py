"""Whose a process is: what is certain is killed, what is not is left alone."""

import os
import signal
import subprocess
import sys
import time

import pytest

from llmgw.runner.record import (
    BrokenFileError,
    Identity,
    Known,
    Session,
    Verdict,
    boot_id,
    boot_ticks,
    kill_members,
    members,
    read_identity,
    read_process,
    verify,
)
from tests.runner.world import World, edit_json, is_alive, pids_in, wait

LATER = 1 << 40


def identity_of(*sessions: Session, commands: tuple[Known, ...] = ()) -> Identity:
    return Identity(boot_id(), sessions, commands)


def start_ticks_of(pid: int) -> int:
    process = read_process(pid)
    assert process is not None
    return process.start_ticks


def leader(world: World, script: str) -> subprocess.Popen[bytes]:
    """Something that leads a session, as a runner does."""
    return world.process(["/bin/sh", "-c", script], new_session=True)


def session_of(pid: int, alive_at_ticks: int = 0) -> Session:
    return Session(pid, pid, start_ticks_of(pid), alive_at_ticks)


def test_a_process_is_the_same_only_by_pid_start_time_and_boot(world: World) -> None:
    stranger = world.stranger()
    start = start_ticks_of(stranger.pid)
    assert verify(stranger.pid, start, boot_id()) is Verdict.SAME
    assert verify(stranger.pid, start - 1, boot_id()) is Verdict.DIFFERENT
    assert verify(stranger.pid, start, "another boot") is Verdict.DIFFERENT
    assert verify(stranger.pid, None, boot_id()) is Verdict.CANNOT_TELL
    assert verify(stranger.pid, start, None) is Verdict.CANNOT_TELL
    assert verify(0, start, boot_id()) is Verdict.DIFFERENT
    assert verify(-1, start, boot_id()) is Verdict.DIFFERENT
    os.kill(stranger.pid, signal.SIGKILL)
    # Not reaped: a zombie holds its number and start time, and is alive no more.
    wait(lambda: not is_alive(stranger.pid))
    assert verify(stranger.pid, start, boot_id()) is Verdict.DIFFERENT
    stranger.wait()
    assert verify(stranger.pid, start, boot_id()) is Verdict.DIFFERENT


def test_a_process_whose_first_thread_has_ended_lives(world: World) -> None:
    script = (
        "import ctypes, threading, time; "
        "threading.Thread(target=time.sleep, args=(60,)).start(); "
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    process = world.process([sys.executable, "-c", script])
    start = start_ticks_of(process.pid)

    def looks_like_a_zombie() -> bool:
        found = read_process(process.pid)
        return found is not None and found.state == "Z"

    wait(looks_like_a_zombie)
    assert verify(process.pid, start, boot_id()) is Verdict.SAME


@pytest.mark.parametrize("start_ticks", [1, None])
def test_a_stranger_that_has_the_pid_of_a_command_gets_no_signal(
    world: World, start_ticks: int | None
) -> None:
    stranger = world.stranger()
    gone = Session(LATER, LATER, 1, 2)
    identity = identity_of(gone, commands=(Known("engine", stranger.pid, start_ticks),))
    killed = kill_members(identity, 0.1)
    assert (killed.killed, killed.left) == ((), ())
    assert bool(killed.unsure) is (start_ticks is None)
    assert stranger.poll() is None
    assert world.heard() == ""


@pytest.mark.parametrize("start_ticks", [1, None])
def test_a_stranger_that_has_the_pid_of_a_runner_gets_no_signal(
    world: World, start_ticks: int | None
) -> None:
    stranger = world.stranger(new_session=True)
    taken = Session(stranger.pid, stranger.pid, start_ticks, boot_ticks())
    killed = kill_members(identity_of(taken), 0.1)
    assert (killed.killed, killed.left) == ((), ())
    assert bool(killed.unsure) is (start_ticks is None)
    assert stranger.poll() is None
    assert world.heard() == ""


def test_a_start_time_that_cannot_be_read_is_a_broken_file(world: World) -> None:
    path = world.root / "x.identity"
    path.write_text('{"version": 1}')
    edit_json(path, boot_id=boot_id(), pid=1, session=1, start_ticks="yesterday")
    with pytest.raises(BrokenFileError, match="'start_ticks' is not a whole number"):
        read_identity(path)


def test_members_unknown_to_this_version_are_ignored(world: World) -> None:
    path = world.root / "x.identity"
    path.write_text('{"version": 9, "colour": "red"}')
    edit_json(path, boot_id="b", pid=7, session=7, start_ticks=3, commands=[{
        "name": "engine", "pid": 8, "start_ticks": 4, "mood": "good"}])  # fmt: skip
    assert read_identity(path) == Identity("b", (Session(7, 7, 3, 0),), (Known("engine", 8, 4),))


def test_a_session_is_ours_while_its_leader_lives(world: World) -> None:
    runner = leader(world, "sleep 60 & sleep 60")
    wait(lambda: len(members(identity_of(session_of(runner.pid))).processes) == 2)
    identity = identity_of(session_of(runner.pid))
    found = members(identity)
    assert found.runner is not None
    assert found.runner.pid == runner.pid
    killed = kill_members(identity, 5.0)
    assert len(killed.killed) == 3
    assert not killed.left


def test_a_session_without_leader_is_proven_by_a_command_in_it(world: World) -> None:
    pids = world.root / "pids"
    runner = leader(world, f"sleep 60 & echo $! > {pids}; (sleep 61; :) & wait")
    wait(lambda: len(members(identity_of(session_of(runner.pid))).processes) == 3)
    session, engine = session_of(runner.pid), pids_in(pids)[0]
    known = Known("engine", engine, start_ticks_of(engine))
    runner.kill()
    runner.wait()
    assert len(members(identity_of(session)).unsure) == 1
    assert not members(identity_of(session)).processes
    assert len(members(identity_of(session, commands=(known,))).processes) == 3
    assert len(kill_members(identity_of(session, commands=(known,)), 5.0).killed) == 3


def test_a_session_without_leader_and_commands_is_proven_by_age_alone(world: World) -> None:
    runner = leader(world, "sleep 60 & sleep 60")
    wait(lambda: len(members(identity_of(session_of(runner.pid))).processes) == 2)
    started_ticks = start_ticks_of(runner.pid)
    wait(lambda: boot_ticks() > started_ticks + 20)
    then = boot_ticks()
    session = session_of(runner.pid, alive_at_ticks=then)
    too_early = session_of(runner.pid, alive_at_ticks=started_ticks)
    runner.kill()
    runner.wait()
    doubt = kill_members(identity_of(too_early), 0.1)
    assert (doubt.killed, doubt.left) == ((), ())
    assert "nothing proves that they are this shard's" in doubt.unsure[0]
    assert len(kill_members(identity_of(session), 5.0).killed) == 2


def test_what_forks_all_the_time_is_killed_and_the_stranger_beside_it_is_not(
    world: World,
) -> None:
    stranger = world.stranger()
    # Each child is an orphan at once; one loop leads a process group of its own.
    forks = "while :; do (sleep 60 &); sleep 0.01; done"
    runner = leader(world, f"trap '' TERM; set -m; ({forks}) & set +m; {forks}")
    identity = identity_of(session_of(runner.pid))
    wait(lambda: len(members(identity).processes) > 10)
    killed = kill_members(identity, 5.0)
    assert not killed.left
    assert len(killed.killed) > 10
    assert not members(identity).processes
    assert stranger.poll() is None
    assert world.heard() == ""


def test_another_boot_has_no_members_here(world: World) -> None:
    stranger = world.stranger(new_session=True)
    known = Known("engine", stranger.pid, start_ticks_of(stranger.pid))
    identity = Identity("another boot", (session_of(stranger.pid, LATER),), (known,))
    assert members(identity).processes == ()
    assert kill_members(identity, 0.1).killed == ()
    assert stranger.poll() is None


def test_a_kill_has_a_deadline(world: World) -> None:
    began_s = time.monotonic()
    kill_members(identity_of(Session(LATER, LATER, 1, 2)), 5.0)
    assert time.monotonic() - began_s < 2.0
