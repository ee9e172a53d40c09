"""What a gateway is told at its start; every limit has a unit and a default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a request may wait for what."""

    body_s: float = 60.0
    """For the client to send the whole body."""
    wait_s: float = 30.0
    """In the queue, while all replicas of the model are busy or their breakers open."""
    unready_s: float = 2.0
    """In the queue, while no replica is routed at all; the snapshot may bring one any moment."""
    connect_s: float = 3.0
    first_byte_s: float = 600.0
    """For the engine's first byte: it may have a queue of its own, and a long prompt."""
    idle_s: float = 120.0
    """Between two bytes of an answer."""
    stalled_s: float = 120.0
    """For a client that takes nothing of what is sent to it; then it counts as gone."""
    keep_alive_s: float = 75.0
    """For the head of a client's next request."""
    pooled_s: float = 30.0
    """For a connection to an engine that nobody uses."""
    drain_s: float = 20.0
    """For answers under way, when the gateway stops; STOP_S_MAX of runtime.tasks is longer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of what at most."""

    body_bytes_max: int = 32 * MEBIBYTE
    connections_max: int = 4096
    in_flight_max: int = 256
    """Requests at one replica; engines have queues of their own, so this is generous."""
    waiting_max: int = 1024
    """Requests in the queue of one model."""
    pooled_max: int = 256
    """Unused connections kept for one replica."""
    attempts_max: int = 3
    """Replicas that one request is tried on."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The journal of what was used."""

    segment_bytes: int = 16 * MEBIBYTE
    """Two are reserved at all times; that is room for 8,000 open requests."""
    bytes_max: int = 1024 * MEBIBYTE
    refuse_when_full: bool = True
    """False: serve on without counting, and drop the oldest records, where there is no room."""
    acknowledged: bool = True
    """False: no control plane takes usage, as without a store. Then the oldest records make room
    within `bytes_max`; a disk that takes nothing still refuses."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """One gateway."""

    state_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    """0: the kernel picks one."""
    reuse_port: bool = False
    """Several gateways, each with a state directory of its own, share the port."""
    deadlines: Deadlines = Deadlines()
    limits: Limits = Limits()
    journal: JournalOptions = JournalOptions()
    tick_s: float = 1.0
    """How often deadlines are looked at."""
