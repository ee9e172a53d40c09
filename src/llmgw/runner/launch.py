"""What a runner is to start: launch.json, written by the agent before it spawns the runner.

The file holds the environment with the engine's keys, so it has mode 0600.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.runner.atomic import read_whole, write_atomic
from llmgw.runner.fields import BrokenFileError, Fields, parse

LAUNCH_VERSION: Final = 1
LAUNCH_FILE: Final = "launch.json"
NAME_CHARS_MAX: Final = 32
COMMANDS_MAX: Final = 16
NOTES_NAME: Final = "runner"


@dataclass(frozen=True, slots=True)
class Command:
    """One program of a shard; `env` is its whole environment, nothing is inherited."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None = None
    waits_for_rendezvous: bool = False

    def __post_init__(self) -> None:
        plain = self.name.replace("-", "").replace("_", "").replace(".", "")
        if not plain.isalnum() or len(self.name) > NAME_CHARS_MAX or self.name == NOTES_NAME:
            raise ValueError(
                f"command name {self.name!r} is not 1 to {NAME_CHARS_MAX} of letters, digits, "
                f"'.', '-', '_', or is {NOTES_NAME!r}"
            )
        if not self.argv:
            raise ValueError(f"command {self.name!r} has no argv")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The head's address (an IP address, no name) and port, and how long to wait for it."""

    host: str
    port: int
    timeout_s: float

    def __post_init__(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            socket.inet_pton(family, self.host)
        except OSError:
            # A name would be resolved, and that may block for longer than a runner may.
            raise ValueError(f"rendezvous host {self.host!r} is not an IP address") from None
        if not 1 <= self.port <= 65535 or self.timeout_s < 0:
            raise ValueError(f"rendezvous port {self.port} or its timeout is out of range")


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a runner needs: the last command is the engine, those before it are sidecars."""

    commands: tuple[Command, ...]
    blank: tuple[str, ...] = field(default=(), repr=False)
    rendezvous: Rendezvous | None = None
    grace_s: float = 30.0
    log_bytes_max: int = 16 * 1024 * 1024
    log_files_max: int = 4

    def __post_init__(self) -> None:
        names = [command.name for command in self.commands]
        if not 1 <= len(names) <= COMMANDS_MAX or len(set(names)) != len(names):
            raise ValueError(f"commands are not 1 to {COMMANDS_MAX} with different names: {names}")
        if self.rendezvous is None and any(c.waits_for_rendezvous for c in self.commands):
            raise ValueError("a command waits for the rendezvous, and none is given")
        if self.grace_s < 0 or self.log_bytes_max < 1 or self.log_files_max < 1:
            raise ValueError("grace_s, log_bytes_max or log_files_max is out of range")

    @property
    def engine(self) -> Command:
        """The command whose exit is the shard's."""
        return self.commands[-1]


def write_launch(directory: str | os.PathLike[str], launch: Launch) -> None:
    """Write launch.json (mode 0600), so that it survives a power cut."""
    rendezvous = launch.rendezvous
    document = {
        "version": LAUNCH_VERSION,
        "commands": [
            {
                "name": command.name,
                "argv": list(command.argv),
                "env": dict(command.env),
                "cwd": command.cwd,
                "waits_for_rendezvous": command.waits_for_rendezvous,
            }
            for command in launch.commands
        ],
        "blank": list(launch.blank),
        "rendezvous": None
        if rendezvous is None
        else {
            "host": rendezvous.host,
            "port": rendezvous.port,
            "timeout_s": rendezvous.timeout_s,
        },
        "grace_s": launch.grace_s,
        "log_bytes_max": launch.log_bytes_max,
        "log_files_max": launch.log_files_max,
    }
    write_atomic(os.path.join(directory, LAUNCH_FILE), json.dumps(document).encode())


def read_launch(directory: str | os.PathLike[str]) -> Launch:
    """Read launch.json; OSError or BrokenFileError (never quotes a value: keys are inside)."""
    path = os.path.join(directory, LAUNCH_FILE)
    fields = parse(read_whole(path), LAUNCH_FILE)
    try:
        return _launch(fields)
    except ValueError as fault:
        raise BrokenFileError(f"{LAUNCH_FILE}: {fault}") from fault


def _launch(fields: Fields) -> Launch:
    rendezvous = fields.item("rendezvous")
    return Launch(
        commands=tuple(
            Command(
                name=command.text("name"),
                argv=command.texts("argv"),
                env=command.pairs("env"),
                cwd=command.text_or_none("cwd"),
                waits_for_rendezvous=command.flag("waits_for_rendezvous"),
            )
            for command in fields.items("commands")
        ),
        blank=fields.texts("blank"),
        rendezvous=None
        if rendezvous is None
        else Rendezvous(
            rendezvous.text("host"), rendezvous.whole("port"), rendezvous.number("timeout_s")
        ),
        grace_s=fields.number("grace_s"),
        log_bytes_max=fields.whole("log_bytes_max"),
        log_files_max=fields.whole("log_files_max"),
    )
