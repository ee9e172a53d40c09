"""A cgroup v2 per shard, where systemd (Delegate=yes) or an operator has delegated one to us.

Only a cgroup that carries the mark of a delegation (the extended attribute `user.delegate` or
`trusted.delegate`, which systemd sets) is used: root could write everywhere, and must not.
"""

import contextlib
import os
from collections.abc import Iterator

from llmgw.runner.identity import Cgroup

_MARKS = ("user.delegate", "trusted.delegate")


def make_cgroup(name: str) -> Cgroup | None:
    """A new, empty cgroup for the shard `name`; None where none is delegated."""
    try:
        for folder in _own_and_parent():
            if _is_delegated(folder):
                path = os.path.join(folder, f"shard-{name}")
                os.mkdir(path)
                return Cgroup(path, os.stat(path).st_ino)
    except OSError:
        return None
    return None


def remove_cgroup(cgroup: Cgroup) -> None:
    """Remove it if it is still the one that was made and is empty."""
    with contextlib.suppress(OSError):
        if os.stat(cgroup.path).st_ino == cgroup.inode:
            for folder, _, _ in os.walk(cgroup.path, topdown=False):
                os.rmdir(folder)


def _own_and_parent() -> Iterator[str]:
    mount = _mount_point()
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
    if mount is None or own is None:
        return
    yield mount + own.rstrip("/")
    if own != "/":
        yield mount + os.path.dirname(own).rstrip("/")


def _mount_point() -> str | None:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            if right.startswith("cgroup2 "):
                return left.split()[4]
    return None


def _is_delegated(folder: str) -> bool:
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, mark) == b"1":
                return os.access(folder, os.W_OK)
    return False
