"""Starts a shard's commands in order, each when its turn has come and the rendezvous listens."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from llmgw.runner.launch import Command, Launch
from llmgw.runner.rendezvous import RendezvousWait, Waiting
from llmgw.runner.spawn import SpawnError


class NeverListenedError(Exception):
    """The rendezvous was awaited for too long; the text says how long and where."""


class Spawner(Protocol):
    """Starts one command, or raises SpawnError."""

    def __call__(self, command: Command) -> None:
        """Start it."""
        ...


class Starting:
    """The commands that are still to be started."""

    def __init__(self, launch: Launch, spawn: Spawner, say: Callable[[str], None]) -> None:
        self._launch = launch
        self._todo = deque(launch.commands)
        self._spawn = spawn
        self._say = say
        self._wait: RendezvousWait | None = None
        self._has_listened = False

    @property
    def next_name(self) -> str:
        """The command whose turn it is."""
        return self._todo[0].name

    def step(self, now_s: float) -> bool:
        """Start what can be started; whether all are. SpawnError or NeverListenedError."""
        if self._todo and not self._may_start(self._todo[0], now_s):
            return False
        if self._todo:
            self._spawn(self._todo[0])
            self._todo.popleft()
        return not self._todo

    def _may_start(self, command: Command, now_s: float) -> bool:
        rendezvous = self._launch.rendezvous
        if not command.waits_for_rendezvous or self._has_listened or rendezvous is None:
            return True
        if self._wait is None:
            self._wait = RendezvousWait(rendezvous, now_s)
            self._say(f"{command.name} waits for the rendezvous {self._wait.address} to listen")
        match self._wait.step(now_s):
            case Waiting.LISTENS:
                self._has_listened = True
            case Waiting.TOO_LATE:
                raise NeverListenedError(self._wait.failure)
            case Waiting.YET:
                pass
        return self._has_listened

    def close(self) -> None:
        """Wait no more."""
        if self._wait is not None:
            self._wait.close()


__all__ = ["NeverListenedError", "SpawnError", "Spawner", "Starting"]
