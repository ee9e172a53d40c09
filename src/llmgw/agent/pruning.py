"""Which ended runs are removed: the last few of a replica keep their logs, within a bound. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from llmgw.agent.runs import shard_key
from llmgw.core.ids import ReplicaId, ShardKey


@dataclass(frozen=True, slots=True)
class Pruning:
    """How much is kept of what has ended."""

    per_replica: int
    bytes_max: int
    runs_max: int = 64


def to_prune(
    sizes: Mapping[str, int], wanted: Collection[ShardKey], keep: Pruning
) -> tuple[str, ...]:
    """Return the ended runs to remove, given their sizes in bytes, oldest incarnation first.

    A run that is assigned stays whatever its size: without its directory the same incarnation
    would start a second time.
    """
    keys = {name: key for name in sizes if (key := shard_key(name)) is not None}
    free = sorted((name for name, key in keys.items() if key not in wanted), key=keys.__getitem__)
    by_replica: dict[ReplicaId, list[str]] = {}
    for name in free:
        by_replica.setdefault(keys[name].replica, []).append(name)
    gone: list[str] = []
    for names in by_replica.values():
        gone += names[: max(len(names) - keep.per_replica, 0)]
    # Of those that may stay, the latest incarnations go last.
    rest = [name for name in free if name not in set(gone)]
    rest.sort(key=lambda name: (_rank(by_replica, keys[name].replica, name), name))
    total = sum(sizes[name] for name in keys if name not in set(gone))
    while rest and (total > keep.bytes_max or len(rest) > keep.runs_max):
        name = rest.pop(0)
        total -= sizes[name]
        gone.append(name)
    return tuple(gone)


def _rank(by_replica: Mapping[ReplicaId, list[str]], replica: ReplicaId, name: str) -> int:
    names = by_replica[replica]
    return names.index(name) - len(names)
