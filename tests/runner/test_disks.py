"""Full and read-only disks: supervision goes on, the socket says the truth, nothing is lost."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.runner.libc import Libc
from llmgw.runner.logs import LogWriter
from llmgw.runner.pump import RETRY_S, RawPump
from llmgw.runner.record import ExitCode, Phase, identity_path
from tests.guards.parts import require
from tests.runner.world import World, is_alive, pids_in, sh, wait

SLEEPS = "while :; do sleep 0.05; done"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    require("a small disk", here=mounted, how="run as root, who may mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Take all space of the disk."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_disk_changes_nothing_about_supervision(world: World, small_disk: Path) -> None:
    shard = world.shard("disk/r7k2m9x4qd.1.0").start(sh("ray", SLEEPS), sh("engine", SLEEPS))
    ray = shard.pid("ray")
    filler = fill(small_disk)
    os.kill(shard.pid("engine"), 9)
    wait(lambda: shard.status().record.phase is Phase.ENDED)
    told = shard.status().record
    assert told.exit is not None
    assert told.exit.status == -9
    assert "record.json cannot be written (No space left on device)" in told.why
    assert shard.record().phase is Phase.RUNNING
    assert not is_alive(ray)
    assert shard.runner.poll() is None
    filler.unlink()
    assert shard.runner.wait(5) == 0
    assert shard.record().phase is Phase.ENDED
    assert "cannot be written" not in shard.record().why


def test_a_runner_that_cannot_write_its_last_record_leaves_when_told(
    world: World, small_disk: Path
) -> None:
    shard = world.shard("disk/r7k2m9x4qd.1.0").start(sh("engine", SLEEPS))
    filler = fill(small_disk)
    shard.runner.terminate()
    wait(lambda: shard.status().record.phase is Phase.ENDED)
    shard.runner.terminate()
    assert shard.runner.wait(5) == ExitCode.ENDED
    filler.unlink()
    shard.spawn()  # the next one finds out, and says that nobody saw it
    assert shard.runner.wait(5) == ExitCode.ENDED
    assert shard.record().phase is Phase.ENDED


def test_nothing_starts_on_a_full_disk(world: World, small_disk: Path) -> None:
    started = world.root / "started"
    shard = world.shard("disk/r7k2m9x4qd.1.0").prepare(sh("engine", f"echo $$ > {started}"))
    fill(small_disk)
    shard.errors = world.root / "stderr"
    shard.spawn()
    assert shard.runner.wait(5) == ExitCode.CANNOT_WRITE
    assert "No space left" in shard.said()
    assert not started.exists()
    assert not Path(identity_path(shard.directory)).exists()
    assert not (shard.directory / "record.json").exists()


def test_a_log_that_could_not_be_written_misses_nothing_afterwards(
    tmp_path: Path, small_disk: Path
) -> None:
    raw = tmp_path / "engine.raw"
    writer = LogWriter(str(small_disk), 1 << 20, 2)
    writer.append([b"before\n"])
    pump = RawPump(str(raw), "engine", (), writer, Libc())
    filler = fill(small_disk)
    expected = [f"line {number} {'x' * 100}" for number in range(500)]
    raw.write_text("".join(f"{line}\n" for line in expected))
    for second in range(100, 110):
        pump.step(float(second), 0.0)
    assert pump.trouble.why == "the log cannot be written: No space left on device"
    kept = (small_disk / "shard.000001.log").read_text()
    assert kept.endswith("\n"), "a torn line was left behind"
    filler.unlink()
    now_s = 200.0
    while pump.step(now_s, 0.0) or pump.trouble.why:
        now_s += RETRY_S + 1
    pump.close()
    writer.close()
    lines = (small_disk / "shard.000001.log").read_text().splitlines()
    assert [line.partition("| ")[2] for line in lines[1:]] == expected


def test_a_directory_that_became_read_only_is_retried_until_it_is_not(world: World) -> None:
    require("chattr", here=shutil.which("chattr") is not None, how="apt-get install e2fsprogs")
    shard = world.shard().start(sh("engine", SLEEPS))
    make = ["chattr", "+i", str(shard.directory)]
    made = subprocess.run(make, capture_output=True, check=False).returncode == 0
    require("an immutable directory", here=made, how="run as root on ext4, xfs or btrfs")
    try:
        with shard.client() as client:
            client.stop()
        wait(lambda: shard.status().record.phase is Phase.ENDED)
        assert shard.record().phase is Phase.RUNNING
        assert os.strerror(errno.EPERM) in shard.status().record.why
    finally:
        subprocess.run(["chattr", "-i", str(shard.directory)], check=True)
    assert shard.runner.wait(5) == 0
    assert shard.record().phase is Phase.ENDED


def test_a_runner_whose_directory_was_removed_still_ends_its_shard(world: World) -> None:
    shard = world.shard().start(sh("ray", SLEEPS), sh("engine", SLEEPS))
    ray, engine = shard.pid("ray"), shard.pid("engine")
    shutil.rmtree(shard.directory)
    assert is_alive(engine)
    shard.runner.terminate()
    assert shard.runner.wait(8) == ExitCode.ENDED
    assert not is_alive(ray)
    assert not is_alive(engine)


@pytest.fixture
def delegated(tmp_path: Path) -> Iterator[Path]:
    """A cgroup v2 that is marked as delegated."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    point = next((line.split()[4] for line in mounts if " - cgroup2 " in line), None)
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    require("cgroup v2", here=point is not None and own is not None, how="mount it")
    cgroup = Path(f"{point}{own}") / f"llmgw-test-{os.getpid()}"
    try:
        cgroup.mkdir()
        os.setxattr(cgroup, "user.delegate", b"1")
    except OSError as fault:
        require("a delegated cgroup", here=False, how=f"run as root ({fault.strerror})")
    yield cgroup
    (cgroup / "cgroup.kill").write_text("1")
    wait(lambda: _removed(cgroup))


def _removed(cgroup: Path) -> bool:
    with contextlib.suppress(OSError):
        for folder in [*(path for path in cgroup.iterdir() if path.is_dir()), cgroup]:
            folder.rmdir()
    return not cgroup.exists()


def test_in_a_cgroup_even_what_left_the_session_is_found_after_the_runner_died(
    world: World, delegated: Path
) -> None:
    pids = world.root / "pids"
    escape = f"setsid sh -c '(trap \"\" TERM; {SLEEPS}) & echo $! > {pids}'"
    shard = world.shard().prepare(sh("engine", f"{escape}; {SLEEPS}")).spawn(inside=delegated)
    shard.until(Phase.RUNNING)
    wait(lambda: len(pids_in(pids)) == 1)
    cgroup = shard.identity().cgroup
    assert cgroup is not None
    assert Path(cgroup.path) == delegated / "shard-r7k2m9x4qd.1.0"
    shard.kill_runner()
    os.kill(shard.pid("engine"), 9)
    wait(lambda: not is_alive(shard.pid("engine")))
    assert is_alive(pids_in(pids)[0])
    shard.spawn()
    assert shard.runner.wait(5) == 0
    assert not is_alive(pids_in(pids)[0])
    assert not Path(cgroup.path).exists()


def test_without_a_delegation_no_cgroup_is_made(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    assert shard.identity().cgroup is None
    shard.stop()
