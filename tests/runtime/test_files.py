"""Tests of llmgw.runtime.files."""

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.runtime.files import (
    LockHeldError,
    StateFileError,
    hold_lock,
    make_private_folder,
    read_bounded,
    write_atomic,
)
from tests.disk import small_disk


def test_what_is_written_is_read_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert read_bounded(path) == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_the_mode_is_what_was_asked_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "public", b"", mode=0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the kernel says EFBIG beyond
    try:
        with pytest.raises(StateFileError) as caught:
            write_atomic(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert str(path) in str(caught.value)
    assert read_bounded(path) == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_a_full_disk_is_named_costs_nothing_and_is_got_over(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.path / "state.json"
        write_atomic(path, b"old")
        disk.fill()
        with pytest.raises(StateFileError) as caught:
            write_atomic(path, b"x" * 9000)
        words = f"cannot write {path}: the disk is full: free some space"
        assert (str(caught.value), caught.value.errno) == (words, errno.ENOSPC)
        assert read_bounded(path) == b"old"
        disk.free()
        write_atomic(path, b"new")
        assert read_bounded(path) == b"new"


def test_a_disk_that_became_read_only_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        disk.read_only()
        with pytest.raises(StateFileError, match="the file system is read-only: mount it writable"):
            write_atomic(disk.path / "state.json", b"x")
        with (
            pytest.raises(StateFileError, match=r"cannot lock .* the file system is read-only"),
            hold_lock(disk.path / "lock", purpose="x"),
        ):
            pass
        disk.writable()
        write_atomic(disk.path / "state.json", b"x")


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StateFileError) as caught:
        write_atomic(tmp_path / "away" / "state.json", b"x")
    assert (
        str(caught.value)
        == f"cannot write {tmp_path}/away/state.json: its folder is not there: make it"
    )
    assert caught.value.errno == errno.ENOENT


def test_a_file_that_is_not_there_is_told_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "away")
    with pytest.raises(StateFileError, match="there is a folder where a file belongs"):
        read_bounded(tmp_path)


def test_a_file_beyond_its_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"x" * 11)
    with pytest.raises(StateFileError, match="has more than 10 bytes"):
        read_bounded(path, bytes_max=10)
    assert read_bounded(path, bytes_max=11) == b"x" * 11


def test_a_private_folder_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_private_folder(folder)
    make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_second_holder_of_a_lock_is_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_lock(path, purpose="running an agent here"):
        with pytest.raises(LockHeldError) as caught, hold_lock(path, purpose="an agent"):
            pass
        words = f"{path} is locked: another process is an agent (pid {os.getpid()})"
        assert str(caught.value) == words
    with hold_lock(path, purpose="running an agent here"):
        pass


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import sys, pathlib; from llmgw.runtime.files import hold_lock\n"
        "with hold_lock(pathlib.Path(sys.argv[1]), purpose='x'): print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(LockHeldError, match=f"pid {child.pid}"), hold_lock(path, purpose="x"):
            pass
        child.kill()
    with hold_lock(path, purpose="x"):
        pass
