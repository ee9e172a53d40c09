"""Starts a command behind a gate: it exists and is written down before it runs anything.

The runner forks (it has one thread and is small); the child waits for one byte. Only when its pid
and start time are on disk does the runner send that byte, and the child becomes the program,
with the same pid and start time. If the runner is killed in between, the child reads the end of
the file and ends. So no moment exists in which a program runs that no file knows.
"""

import errno
import os
import select
import signal
from collections.abc import Mapping
from typing import Final, NoReturn

from llmgw.runner.launch import Command
from llmgw.runner.process import Process, read_process

EXEC_S_MAX: Final = 20.0
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOENT: "install it or correct the path; if the file is there, the interpreter or "
    "loader that it names is not",
    errno.EACCES: "make it an executable file that this user may run",
    errno.ENOEXEC: "it is not a program for this machine, or a script without a first line '#!'",
    errno.E2BIG: "its arguments and environment are too long together; shorten them",
    errno.ENOSPC: "the disk is full; make room",
    errno.EAGAIN: "too many processes; raise the limit (ulimit -u, TasksMax=)",
    errno.ENOMEM: "the machine is out of memory",
    errno.ENOTDIR: "a part of the path is no directory",
    errno.ETXTBSY: "something is writing to it; wait until that is done",
    errno.EROFS: "the file system is read-only; mount it writable",
}


class SpawnError(Exception):
    """A command could not be started; the text says what, which file and what to do."""


def explain(what: str, path: str, number: int) -> str:
    """One sentence for a failed start."""
    remedy = _REMEDIES.get(number, "see the message")
    return f"{what} {path}: {os.strerror(number)}; {remedy}"


def find_program(command: Command) -> str:
    """The program's path, sought in the PATH of the command's own environment."""
    program = command.argv[0]
    if "/" in program:
        return program
    path = command.env.get("PATH", DEFAULT_PATH)
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", program)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    raise SpawnError(
        f"cannot start {command.name}: no program {program!r} in PATH={path}; install it, or give "
        "its whole path"
    )


class Gate:
    """A forked child that waits to become the command's program."""

    def __init__(self, command: Command, output: int, closing: int, cgroup: str | None) -> None:
        """Fork; `output` takes stdout and stderr, `closing` is closed in the child at once."""
        self._command = command
        self._program = find_program(command)
        go_read, self._go = os.pipe2(os.O_CLOEXEC)
        self._fault, fault_write = os.pipe2(os.O_CLOEXEC)
        # With all signals blocked none can reach the runner's handlers in the child.
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                closes = (closing, self._go)
                _become(command, self._program, closes, (go_read, output, fault_write), cgroup)
        except OSError as fault:
            os.close(self._go)
            os.close(self._fault)
            number = fault.errno or 0
            raise SpawnError(explain("cannot fork for", command.name, number)) from fault
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(go_read)
            os.close(fault_write)
        process = read_process(pid)
        if process is None:
            raise SpawnError(f"cannot start {command.name}: /proc/{pid} cannot be read")
        self.process: Process = process

    def cancel(self) -> None:
        """Let the child end without having run anything."""
        os.close(self._go)
        os.close(self._fault)
        os.waitpid(self.process.pid, 0)

    def open(self) -> None:
        """Let the child become the program; SpawnError if it cannot (the child has then ended)."""
        try:
            os.write(self._go, b"!")
            os.close(self._go)
            poll = select.poll()
            poll.register(self._fault, select.POLLIN)
            if not poll.poll(EXEC_S_MAX * 1000):
                os.kill(self.process.pid, signal.SIGKILL)
                raise SpawnError(
                    f"cannot start {self._command.name}: executing {self._program} has not come "
                    f"back in {EXEC_S_MAX:.0f} s; does its file system hang?"
                )
            report = os.read(self._fault, 64)
        finally:
            os.close(self._fault)
        if report:
            os.waitpid(self.process.pid, 0)
            raise SpawnError(self._sentence(report))

    def _sentence(self, report: bytes) -> str:
        stage, _, number = report.decode().partition(":")
        what = f"cannot start {self._command.name}: {stage}"
        path = self._program
        if stage == "changing to":
            path = self._command.cwd or "/"
        elif stage == "entering":
            path = "its cgroup"
        return explain(what, path, int(number))


def _become(
    command: Command,
    program: str,
    closes: tuple[int, ...],
    descriptors: tuple[int, int, int],
    cgroup: str | None,
) -> NoReturn:
    """In the child: wait for the gate, then become the program. Never returns or raises."""
    go, output, fault = descriptors
    stage = "preparing"
    try:
        for descriptor in closes:
            os.close(descriptor)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) not in (signal.SIG_DFL, None):
                signal.signal(number, signal.SIG_DFL)
        # A process group of its own: an engine that signals its group must not hit the runner.
        os.setpgid(0, 0)
        null = os.open("/dev/null", os.O_RDWR)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.read(go, 1) != b"!":
            os._exit(0)
        if cgroup is not None:
            stage = "entering"
            with open(os.path.join(cgroup, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write("0")
        stage = "changing to"
        os.chdir(command.cwd or "/")
        stage = "executing"
        os.execve(program, list(command.argv), dict(command.env))  # noqa: S606 - no shell: that is the point
    except OSError as error:
        os.write(fault, f"{stage}:{error.errno or 0}".encode())
    except ValueError:  # a NUL in an argument: never a file name, so no errno says it
        os.write(fault, f"{stage}:{errno.EINVAL}".encode())
    finally:
        os._exit(127)
