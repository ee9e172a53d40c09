"""Engine plans, kept per placement: decide() asks for each one at every turn."""

from typing import TYPE_CHECKING, Final

from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.placement import Placement
from llmgw.engines.base import Refused
from llmgw.engines.registry import ENGINES

if TYPE_CHECKING:
    from llmgw.core.ids import ReplicaId

PLANS_MAX: Final = 4_096
"""Placements that are remembered; the one that was planned first makes room."""

Planned = tuple[ShardSpec, ...] | str


def plan_by_engine(placement: Placement) -> Planned:
    """Return the specs of a placement's shards, or why its engine cannot run so."""
    planned = ENGINES[placement.profile.engine].plan(placement)
    return planned.why if isinstance(planned, Refused) else planned


class Plans:
    """A Planner that remembers. Placements hold mappings, so they are compared, not hashed."""

    def __init__(self, plans_max: int = PLANS_MAX) -> None:
        self._plans_max = plans_max
        self._known: dict[tuple[ReplicaId, int], tuple[Placement, Planned]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, placement: Placement) -> Planned:
        """See Planner."""
        key = (placement.replica, placement.incarnation)
        known = self._known.get(key)
        if known is not None and (known[0] is placement or known[0] == placement):
            return known[1]
        planned = plan_by_engine(placement)
        self._known.pop(key, None)
        self._known[key] = (placement, planned)
        if len(self._known) > self._plans_max:
            del self._known[next(iter(self._known))]
        return planned
