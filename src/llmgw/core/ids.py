"""Names of things: distinct types so that one id is never taken for another."""

from dataclasses import dataclass
from typing import Final, NewType, Self

NodeId = NewType("NodeId", str)
ReplicaId = NewType("ReplicaId", str)
LinkId = NewType("LinkId", str)

# Lower-case letters and digits that nobody confuses when reading them aloud.
_ALPHABET: Final = "23456789abcdefghjkmnpqrstvwxyz"
ID_BYTES: Final = 10


def id_from(entropy: bytes) -> str:
    """Return an id of ID_BYTES characters made from that many random bytes."""
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in entropy[:ID_BYTES])


@dataclass(frozen=True, slots=True, order=True)
class ShardKey:
    """Which start of which part of which replica: everybody ignores older incarnations."""

    replica: ReplicaId
    incarnation: int
    node_rank: int

    def __str__(self) -> str:
        """Return the form that names the shard's directory, for instance `k3v9qd2m7a.2.0`."""
        return f"{self.replica}.{self.incarnation}.{self.node_rank}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` gives; raise ValueError for anything else."""
        replica, incarnation, node_rank = text.split(".")
        return cls(ReplicaId(replica), int(incarnation), int(node_rank))
