"""What the control plane wants of one replica: the document that the store keeps. Never "running".

The store knows what is wanted and what has failed; whether something runs, only reports say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from llmgw.core.document import Json
from llmgw.core.fleet.placement import Placement
from llmgw.core.fleet.restart import Failure
from llmgw.core.ids import NodeId, ReplicaId

FAILURES_KEPT: Final = 32


class Wanted(StrEnum):
    """What is wanted of a replica; values are stored."""

    RUN = "run"
    DRAIN = "drain"
    """Unrouted; what is in flight may end."""
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Remains:
    """An incarnation that may still run on a node which was not heard when it was given up."""

    node: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True)
class Intent:
    """One replica as it is wanted, with what has failed so far."""

    placement: Placement
    wanted: Wanted = Wanted.RUN
    why: str = ""
    """Why it is wanted so."""
    reported: bool = False
    """This incarnation was in a report: missing from a later one, it has failed."""
    drain_since_wall_s: float | None = None
    failures: tuple[Failure, ...] = ()
    remains: tuple[Remains, ...] = ()
    unknown: Mapping[str, Json] = field(default_factory=dict)

    @property
    def replica(self) -> ReplicaId:
        """Its id."""
        return self.placement.replica

    @property
    def failed(self) -> bool:
        """Whether the placed incarnation is known to have failed; the next waits to be placed."""
        return bool(self.failures) and (self.failures[-1].incarnation >= self.placement.incarnation)
