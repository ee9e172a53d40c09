"""The gateway put together: what apps make, run, ask and tell."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from llmgw.core.ids import ID_BYTES, id_from
from llmgw.core.traffic.snapshot import Change, Snapshot, changed, usable
from llmgw.core.traffic.usage import Usage
from llmgw.gateway import snapshot_file
from llmgw.gateway.gate import Gate
from llmgw.gateway.http import HttpServer
from llmgw.gateway.journal import Journal
from llmgw.gateway.keyring import SnapshotKeyring
from llmgw.gateway.ledger import JournalLedger
from llmgw.gateway.metrics import GatewayCollector, GatewayMetrics
from llmgw.gateway.options import GatewayOptions
from llmgw.gateway.pipeline import Pipeline
from llmgw.gateway.relay import EngineRelay
from llmgw.gateway.replicas import Replicas
from llmgw.gateway.segments import Reserve
from llmgw.runtime.clock import Clock
from llmgw.runtime.files import hold_lock, make_private_folder, read_bounded, write_atomic
from llmgw.runtime.tasks import Service, keep_level
from llmgw.runtime.threads import ThreadPool

STEP_S_MAX: Final = 30.0
RECENT_MAX: Final = 10_000
_LOCK: Final = "gateway.lock"
_ID: Final = "gateway-id"
_SNAPSHOT: Final = "snapshot.json"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a gateway is made of."""

    replicas: Replicas
    keyring: SnapshotKeyring
    gate: Gate
    relay: EngineRelay
    journal: Journal
    server: HttpServer
    collector: GatewayCollector


class Gateway:
    """Obeys snapshots, serves `port`, and answers for its state."""

    def __init__(
        self,
        options: GatewayOptions,
        parts: Parts,
        pool: ThreadPool,
        clock: Clock,
        held: contextlib.ExitStack,
    ) -> None:
        self.id = _id_in(options)
        """Kept over restarts."""
        self.journal = parts.journal
        self.port = parts.server.port
        self._options = options
        self._parts = parts
        self._pool = pool
        self._clock = clock
        self._held = held
        self._received = Snapshot()
        self._snapshot = Snapshot()
        self._unsaved: Snapshot | None = None
        self._save = asyncio.Event()

    # Snapshots.

    @property
    def snapshot(self) -> Snapshot:
        """What it acts on."""
        return self._snapshot

    def obey(self, received: Snapshot) -> bool:
        """Act on a whole snapshot, unless a later one is obeyed already."""
        if received.order < self._snapshot.order:
            return False
        self._received = received
        self._act_on(usable(self._snapshot, received))
        self._unsaved = self._snapshot
        self._save.set()
        return True

    def obey_change(self, change: Change) -> bool:
        """Act on a change; False if it is for another snapshot: then a whole one is needed."""
        received = changed(self._received, change)
        return received is not None and self.obey(received)

    def _act_on(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._parts.keyring.obey(snapshot.keys)
        self._parts.replicas.obey(snapshot, self._clock.monotonic_s())

    # What others ask.

    def load(self) -> Mapping[str, int]:
        """Requests in flight per replica id."""
        return self._parts.replicas.load()

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether it serves, and how things stand."""
        routed = sum(bool(model.replicas) for model in self._parts.replicas.models.values())
        why = self.journal.why if self._options.journal.refuse_when_full else ""
        if not why and self._snapshot.order == (0, 0):
            why = "no control plane has sent a snapshot yet"
        return not why, {
            "ok": not why,
            "why": why,
            "gateway": self.id,
            "term": self._snapshot.term,
            "revision": self._snapshot.revision,
            "models": len(self._snapshot.routes),
            "models_routed": routed,
            "keys": len(self._snapshot.keys),
            "open_requests": self.journal.open_count,
            "waiting": self._parts.gate.waiting,
            "journal": self.journal.why,
        }

    def metrics_text(self) -> str:
        """Render the metrics in Prometheus' text format."""
        return self._parts.collector.text()

    async def recent_usage(self, count_max: int = RECENT_MAX) -> tuple[Usage, ...]:
        """Return the last closed records that the journal still holds."""
        return await self.journal.recent(count_max)

    # Running.

    @property
    def services(self) -> Sequence[Service]:
        """What must run, in the order of starting."""
        return (
            _Loop("journal", self._keep_journal),
            _Loop("snapshot file", self._keep_snapshot),
            _Loop("deadlines", self._keep_deadlines),
            self._parts.server,
        )

    def close(self) -> None:
        """Let go of what a gateway holds that has never run; blocks."""
        self._parts.server.close()
        self._held.close()

    async def _keep_journal(self) -> None:
        journal, tick_s = self.journal, self._options.tick_s
        try:
            await keep_level(journal.tend, journal.wake, tick_s, STEP_S_MAX, self._clock, "journal")
        finally:
            await self._pool.run(self._held.close)  # the journal's end, then the lock

    async def _keep_snapshot(self) -> None:
        path = self._options.state_dir / _SNAPSHOT

        async def save() -> None:
            snapshot = self._unsaved
            if snapshot is not None:
                await self._pool.run(snapshot_file.save, path, snapshot)
                if self._unsaved is snapshot:
                    self._unsaved = None

        await keep_level(
            save, self._save, self._options.tick_s, STEP_S_MAX, self._clock, "snapshot file"
        )

    async def _keep_deadlines(self) -> None:
        swept_s = self._clock.monotonic_s()
        try:
            while True:
                await self._clock.sleep(self._options.tick_s)
                self._parts.relay.look_at_time()
                now_s = self._clock.monotonic_s()
                if now_s - swept_s >= self._options.deadlines.pooled_s:
                    swept_s = now_s
                    self._parts.replicas.sweep()
        finally:
            self._parts.replicas.close()

    def start_from(self, snapshot: Snapshot) -> None:
        """Act on the snapshot of an earlier life."""
        self._received = snapshot
        self._act_on(snapshot)


@dataclass(frozen=True, slots=True)
class _Loop:
    name: str
    body: Callable[[], Awaitable[None]]

    async def run(self) -> None:
        """See Service."""
        await self.body()


def build_gateway(
    options: GatewayOptions,
    clock: Clock,
    pool: ThreadPool,
    *,
    reserve: Reserve = os.posix_fallocate,
) -> Gateway:
    """Make a gateway from its state directory and take its port; blocks, so not in an event loop.

    Raises OSError (LockHeldError where another gateway has the directory) with what to do.
    """
    make_private_folder(options.state_dir)
    with contextlib.ExitStack() as held:
        lock = options.state_dir / _LOCK
        held.enter_context(hold_lock(lock, purpose="running a gateway on this directory"))
        journal = Journal(options.state_dir, options.journal, pool, clock, reserve)
        journal.begin()
        held.callback(journal.end)
        gateway = Gateway(options, _parts(options, journal, clock), pool, clock, held.pop_all())
    gateway.start_from(snapshot_file.load(options.state_dir / _SNAPSHOT))
    return gateway


def _parts(options: GatewayOptions, journal: Journal, clock: Clock) -> Parts:
    metrics = GatewayMetrics()
    replicas = Replicas(options)
    keyring = SnapshotKeyring(clock)
    ledger = JournalLedger(journal, clock, id_from(os.urandom(ID_BYTES)), metrics.seen)
    gate = Gate(options.deadlines, options.limits, clock)
    relay = EngineRelay(gate, ledger, options.deadlines, clock)
    pipeline = Pipeline(keyring, ledger, replicas, gate, relay)
    server = HttpServer(options, pipeline, metrics, clock)
    collector = GatewayCollector(metrics, replicas, gate, journal)
    return Parts(replicas, keyring, gate, relay, journal, server, collector)


def _id_in(options: GatewayOptions) -> str:
    path = options.state_dir / _ID
    with contextlib.suppress(FileNotFoundError):
        kept = read_bounded(path).decode("ascii", "replace").strip()
        if kept:
            return kept
    fresh = id_from(os.urandom(ID_BYTES))
    write_atomic(path, f"{fresh}\n".encode())
    return fresh
