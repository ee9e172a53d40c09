"""The order in which a shard ends: the engine is asked, then the sidecars, then all is killed.

Pure: it is told the time and what lives, and answers whom to ask; nothing is waited for that has
already ended.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

SIDECAR_GRACE_S: Final = 5.0


class Stage(Enum):
    """How far an ending is."""

    ENGINE = 1
    SIDECARS = 2
    KILL = 3


@dataclass(slots=True)
class Ending:
    """One ending of one shard."""

    engine: str
    sidecars: tuple[str, ...]
    grace_s: float
    began_s: float
    stage: Stage = Stage.ENGINE
    outlasted: list[str] = field(default_factory=list)
    _asked: set[str] = field(default_factory=set)
    _deadline_s: float = 0.0

    def __post_init__(self) -> None:
        self._deadline_s = self.began_s + self.grace_s

    def shorten(self, grace_s: float, now_s: float) -> None:
        """Asked again with a grace of its own: the earlier deadline counts."""
        self.grace_s = min(self.grace_s, grace_s)
        self._deadline_s = min(self._deadline_s, now_s + grace_s)

    def step(self, now_s: float, alive: frozenset[str]) -> tuple[str, ...]:
        """Go on as far as is possible now; the commands to send SIGTERM to."""
        ask: list[str] = []
        while self.stage is not Stage.KILL:
            names = (self.engine,) if self.stage is Stage.ENGINE else self.sidecars
            here = [name for name in names if name in alive]
            ask.extend(name for name in here if name not in self._asked)
            self._asked.update(here)
            if here and now_s < self._deadline_s:
                break
            self.outlasted.extend(here)
            self.stage = Stage(self.stage.value + 1)
            self._deadline_s = now_s + min(self.grace_s, SIDECAR_GRACE_S)
        return tuple(ask)
