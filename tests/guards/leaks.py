"""What a test may leave behind: this process's descriptors and children, seen through /proc."""

import contextlib
import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

LOOK_AGAIN_S: Final = 0.01
LOOK_AGAIN_S_MAX: Final = 0.2
KILL_ROUNDS_MAX: Final = 50
PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Child:
    """One child process; pid and start time together are never used again."""

    pid: int
    start_time: str


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was open and alive before a test."""

    descriptors: Mapping[int, str]
    children: frozenset[Child]


def open_what_stays_open() -> None:
    """Let libraries open now what they open once per process and keep, so that it is no leak.

    libuv has one pipe for signals, made with its first loop. gRPC needs nothing here: it closes
    all it has with its last channel or server.
    """
    uvloop.new_event_loop().close()


def take_baseline() -> Baseline:
    """Look at what is there now."""
    return Baseline(_descriptors(), frozenset(_children()))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end, so that none escapes the guard."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def what_stays(look: Callable[[], list[str]], linger_s_max: float) -> list[str]:
    """Return what `look` finds, once that has had time to go away.

    A closed connection or a stopped process needs a moment on a loaded machine; a leak stays.
    """
    deadline_s, pause_s = time.monotonic() + linger_s_max, LOOK_AGAIN_S
    while (found := look()) and time.monotonic() < deadline_s:
        gc.collect()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_AGAIN_S_MAX)
    return found


def kill_children_since(baseline: Baseline) -> None:
    """End what a test left running, and what that leaves in turn: no other test shall meet it."""
    for _ in range(KILL_ROUNDS_MAX):
        left = _children().keys() - baseline.children
        if not left:
            return
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        time.sleep(LOOK_AGAIN_S)


def new_descriptors(baseline: Baseline) -> list[str]:
    """Say what is open now and was not before."""
    now = _descriptors()
    return [
        f"descriptor {number} ({target})"
        for number, target in sorted(now.items())
        if baseline.descriptors.get(number) != target
    ]


def new_children(baseline: Baseline) -> list[str]:
    """Say what is alive now and was not before."""
    return [
        f"process {child.pid} ({command})"
        for child, command in _children().items()
        if child not in baseline.children
    ]


def _descriptors() -> Mapping[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists the folder is closed again
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _children() -> Mapping[Child, str]:
    """Living children, each with its command line; what has ended is reaped: it holds nothing."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            for pid in Path(f"/proc/self/task/{thread}/children").read_text().split():
                with contextlib.suppress(OSError):
                    state, start_time = _state_and_start(pid)
                    if state == "Z":
                        os.waitpid(int(pid), os.WNOHANG)
                    else:
                        found[Child(int(pid), start_time)] = _command(pid)
    return found


def _state_and_start(pid: str) -> tuple[str, str]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def _command(pid: str) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return words.decode(errors="replace").strip()[:200] or "no command line"
