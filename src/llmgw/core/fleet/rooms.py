"""What is left of each node: everything minus what runs, what was granted and what cannot be told.

A GPU stays taken until its node has reported that nothing of the shard is alive; that goes for
granted shards that never began and for strays that nobody planned alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from llmgw.core.fleet.intent import Intent
from llmgw.core.fleet.placement import WHOLE, Placement, Room, ports_from
from llmgw.core.fleet.replica import is_gone, seen
from llmgw.core.fleet.view import ENDED, NodeView, View
from llmgw.core.ids import NodeId


def rooms(view: View, intents: Iterable[Intent]) -> dict[NodeId, Room]:
    """Return the room on every node, given all intents as they now are."""
    nodes = {id_: node for id_, node in view.nodes.items() if node.report is not None}
    left = {id_: _empty(node) for id_, node in nodes.items()}
    covered = set()
    for intent in intents:
        for part in seen(intent, view):
            covered.add(intent.placement.key(part.shard))
            if not is_gone(intent, part):
                share = intent.placement.profile.memory_share
                _occupy(left, part.shard.node, part.shard.port, part.shard.gpus, share)
    for id_, node in nodes.items():
        for report in node.report.shards if node.report else ():
            spec = report.spec
            if report.key not in covered and report.phase not in ENDED and spec is not None:
                _occupy(left, id_, spec.port, spec.gpus, spec.memory_share)
    return left


def grant(left: dict[NodeId, Room], placement: Placement) -> None:
    """Take what a new placement was given out of the rooms."""
    for shard in placement.shards:
        _occupy(left, shard.node, shard.port, shard.gpus, placement.profile.memory_share)


def _empty(node: NodeView) -> Room:
    assert node.report is not None
    closed = "" if node.heard else f"it has not been heard for {node.silent_s:.0f} s"
    return Room(node.report.inventory, {}, closed=closed)


def _occupy(
    left: dict[NodeId, Room], node: NodeId, port: int, gpus: Sequence[str], share: float
) -> None:
    room = left.get(node)
    if room is None:
        return
    shares: Mapping[str, float] = {
        **room.shares,
        **{gpu: max(room.shares.get(gpu, WHOLE) - share, 0.0) for gpu in gpus},
    }
    ports = room.ports_used.union(ports_from(port))
    left[node] = replace(room, shares=shares, ports_used=ports, shards=room.shards + 1)
