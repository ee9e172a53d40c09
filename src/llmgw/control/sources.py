"""Where the log of a replica or a shard is."""

from llmgw.control.reconciler import Seen
from llmgw.control.views import intents_of
from llmgw.core.errors import InvalidRequestError, NotFoundError
from llmgw.core.ids import NodeId, ReplicaId, ShardKey


def find_log(seen: Seen, name: str) -> tuple[NodeId, ShardKey]:
    """Return the node and the shard for a replica's id (its head) or a shard's key.

    Ended shards are found as long as their node reports them or their replica is placed there.
    """
    key = None if "." not in name else _key(name)
    replica = key.replica if key else ReplicaId(name)
    intent = intents_of(seen).get(replica)
    if intent is not None and (key is None or key.incarnation == intent.placement.incarnation):
        rank = key.node_rank if key else 0
        if rank < len(intent.placement.shards):
            placed = intent.placement.shards[rank]
            return placed.node, intent.placement.key(placed)
    found = [
        (shard.key, node.node)
        for node in seen.view.nodes.values()
        for shard in (node.report.shards if node.report else ())
        if shard.key == key or (key is None and shard.key.replica == replica)
    ]
    if not found:
        raise NotFoundError(
            f"no node reports {name}; `llmgw ctl replicas` lists replicas, and ended shards keep "
            "their logs on their node for a while only"
        )
    newest = max(shard.incarnation for shard, _ in found)
    shard, node = min(pair for pair in found if pair[0].incarnation == newest)
    return node, shard


def why_no_log(seen: Seen, key: ShardKey) -> str:
    """Say how a shard's replica is: one that never started has written nothing that says it."""
    for status in seen.decision.statuses:
        if status.replica == key.replica:
            which = f"replica {status.replica}"
            if status.incarnation != key.incarnation:
                which = f"{which}, which is at its start {status.incarnation} now,"
            return f"{which} is {status.phase}: {status.why}"
    return f"no replica {key.replica} is planned any more"


def _key(name: str) -> ShardKey:
    try:
        return ShardKey.parse(name)
    except ValueError:
        raise InvalidRequestError(
            f"{name[:80]!r} is neither a replica's id nor a shard's key; a key looks like "
            "k3v9qd2m7a.2.0"
        ) from None
