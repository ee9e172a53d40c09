"""The runner as a process: its session, its descriptors, its lock and its signals."""

import contextlib
import fcntl
import os
import signal
from types import FrameType
from typing import Final

from llmgw.runner.atomic import PRIVATE_MODE
from llmgw.runner.poller import READ, Poller

LOCK_FILE: Final = "lock"
ERRORS_FILE: Final = "runner.err"
ERRORS_BYTES_MAX: Final = 64 * 1024


def close_inherited() -> None:
    """Keep standard input, output and error (opened if need be), and nothing else of a spawner."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    while null <= 2:
        os.set_inheritable(null, True)  # noqa: FBT003 - takes no keyword
        null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)


def lead_session() -> None:
    """Be the leader of a session; OSError where this process leads a mere process group."""
    if os.getsid(0) != os.getpid():
        os.setsid()


def take_lock(base: str) -> int | None:
    """The descriptor of the lock, held for life; None if another process holds it."""
    path = os.path.join(base, LOCK_FILE)
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def say_error(text: str) -> None:
    """Say it on standard error, unbuffered: a full disk there must not change the exit code."""
    with contextlib.suppress(OSError):
        os.write(2, f"llmgw.runner: {text}\n".encode())


def redirect_errors(logs: str) -> None:
    """From here on, standard output and error go to a small file: no spawner's pipe matters."""
    path = os.path.join(logs, ERRORS_FILE)
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, PRIVATE_MODE)
        if os.fstat(descriptor).st_size > ERRORS_BYTES_MAX:
            os.ftruncate(descriptor, 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)


class Signals:
    """SIGTERM and SIGINT as a counter, SIGCHLD as a wake-up; SIGHUP and SIGPIPE change nothing."""

    def __init__(self, poller: Poller) -> None:
        self.stops = 0
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, _on_nothing)
        signal.signal(signal.SIGHUP, _on_nothing)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a spawner's mask would deafen us
        poller.add(self._read, READ, self._on_wake)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's
        self.stops += 1

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)


def _on_nothing(number: int, frame: FrameType | None) -> None:
    """Only to be woken up."""
