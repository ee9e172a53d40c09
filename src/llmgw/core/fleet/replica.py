"""The life of one replica: a gang of shards, seen from the control plane.

Its phase is derived from the intent and the shards' phases each time, never stored. The tables here
say how, and which moves exist: a replica's shards are all of one incarnation, and when one of them
fails all are stopped and the next incarnation starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from llmgw.core.fleet.catalog import OnSilence, Profile
from llmgw.core.fleet.intent import Intent, Wanted
from llmgw.core.fleet.placement import PlacedShard
from llmgw.core.fleet.report import ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.fleet.view import ENDED, NodeView, View


class ReplicaPhase(StrEnum):
    """Where a replica is; values are exported, so never rename one."""

    PLACED = "placed"
    """Assigned; its nodes have not taken it up yet."""
    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    SILENT = "silent"
    """A node of it is not heard; it may well be serving."""
    FAILED = "failed"
    """This incarnation failed; the next one waits for its time or for room."""
    DRAINING = "draining"
    STOPPING = "stopping"


# The phase that stands for the gang is the one of the shard that is furthest behind.
_BEHIND: Final = (
    (Phase.WAITING, ReplicaPhase.WAITING),
    (Phase.STARTING, ReplicaPhase.STARTING),
    (Phase.LOADING, ReplicaPhase.LOADING),
)

_RUNS: Final = frozenset(
    {
        ReplicaPhase.PLACED,
        ReplicaPhase.WAITING,
        ReplicaPhase.STARTING,
        ReplicaPhase.LOADING,
        ReplicaPhase.READY,
        ReplicaPhase.SILENT,
    }
)
_LEAVES: Final = frozenset({ReplicaPhase.DRAINING, ReplicaPhase.STOPPING})
MOVES: Final[Mapping[ReplicaPhase, frozenset[ReplicaPhase]]] = {
    **{phase: (_RUNS | _LEAVES | {ReplicaPhase.FAILED}) - {phase} for phase in _RUNS},
    ReplicaPhase.FAILED: _RUNS | _LEAVES,
    ReplicaPhase.DRAINING: frozenset({ReplicaPhase.STOPPING}),
    ReplicaPhase.STOPPING: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One placed shard beside what is known of it."""

    shard: PlacedShard
    node: NodeView | None
    """None where the node does not belong any more."""
    report: ShardReport | None

    @property
    def heard(self) -> bool:
        """Whether its node is heard."""
        return self.node is not None and self.node.heard


def seen(intent: Intent, view: View) -> tuple[Seen, ...]:
    """Look up every shard of a replica's current incarnation, by node rank."""
    found = []
    for shard in intent.placement.shards:
        node = view.nodes.get(shard.node)
        report = node.shard(intent.placement.key(shard)) if node else None
        found.append(Seen(shard, node, report))
    return tuple(found)


def is_gone(intent: Intent, part: Seen) -> bool:
    """Tell whether nothing of a shard can be alive on its node any more."""
    if part.node is None:
        return True
    if not part.node.heard:
        return False
    if part.report is None:
        granted = intent.wanted is not Wanted.STOP and not intent.failed
        return not granted and intent.placement.key(part.shard) not in part.node.pending
    return part.report.phase in ENDED


def phase_of(intent: Intent, parts: Sequence[Seen]) -> tuple[ReplicaPhase, str]:
    """Return a replica's phase and the sentence beside it."""
    if intent.wanted is Wanted.STOP:
        return ReplicaPhase.STOPPING, _stopping(intent, parts)
    if intent.wanted is Wanted.DRAIN:
        return ReplicaPhase.DRAINING, intent.why
    if intent.failed:
        return ReplicaPhase.FAILED, intent.failures[-1].why
    for part in parts:
        if not part.heard:
            return ReplicaPhase.SILENT, _silence(part)
        if part.report is None:
            return ReplicaPhase.PLACED, _untaken(intent, part)
    reports = [part.report for part in parts if part.report is not None]
    for behind, phase in _BEHIND:
        for report in reports:
            if report.phase is behind:
                return phase, report.why
    return ReplicaPhase.READY, reports[0].why


def is_serving(parts: Sequence[Seen]) -> bool:
    """Tell whether the head was ready and every worker alive when last reported."""
    head, *workers = (part.report.phase if part.report else None for part in parts)
    return head is Phase.READY and all(phase is Phase.ALIVE for phase in workers)


def why_failed(
    intent: Intent, parts: Sequence[Seen], policy: Profile
) -> tuple[str, tuple[int, ...]] | None:
    """Say why this incarnation has failed, and which ports were taken; None if it has not.

    Only what heard nodes report counts; silence is judged elsewhere, for it needs the whole view.
    """
    for part in parts:
        if part.node is None:
            return f"its node {part.shard.node} was removed", ()
        if not part.heard or part.node.report is None:
            continue
        where = f"shard {part.shard.node_rank} on {part.node.name}"
        key = intent.placement.key(part.shard)
        if part.report is None:
            if why := part.node.report.refused.get(str(key)):
                return f"{where} was refused: {why}", ()
            if intent.reported:
                return f"{where} was there and is missing now", ()
        elif part.report.phase in ENDED:
            ports = (part.shard.port,) if part.report.port_taken else ()
            return f"{where}: {part.report.why}", ports
        elif why := _overdue(policy, part.report):
            return f"{where} {why}", ()
    return None


def why_lost(policy: Profile, parts: Sequence[Seen]) -> str | None:
    """Say which node has been silent for longer than the profile puts up with."""
    if policy.on_silence is not OnSilence.REPLACE:
        return None
    for part in parts:
        if part.node and not part.node.heard and part.node.silent_s > policy.lost_after_s:
            return f"node {part.node.name} was not heard for {part.node.silent_s:.0f} s"
    return None


def lost_in_s(policy: Profile, parts: Sequence[Seen]) -> float | None:
    """Say how soon a node that stays silent will be lost; None where none will be."""
    if policy.on_silence is not OnSilence.REPLACE:
        return None
    silent = [p.node.silent_s for p in parts if p.node and not p.node.heard]
    return policy.lost_after_s - max(silent) if silent else None


def _overdue(profile: Profile, report: ShardReport) -> str | None:
    starting = report.phase in {Phase.WAITING, Phase.STARTING, Phase.LOADING}
    if not starting or report.started_ago_s is None:
        return None
    if report.started_ago_s <= profile.start_timeout_s:
        return None
    last = f"; it last wrote: {report.last_log}" if report.last_log else ""
    return f"was not ready {profile.start_timeout_s:.0f} s after its start ({report.why}){last}"


def _silence(part: Seen) -> str:
    if part.node is None:
        return f"its node {part.shard.node} was removed"
    if part.node.report is None:
        return f"{part.node.name} has not reported to this control plane yet"
    return f"{part.node.name} has not been heard for {part.node.silent_s:.0f} s"


def _untaken(intent: Intent, part: Seen) -> str:
    if part.node is None or part.node.report is None:
        return f"{part.shard.node} has not taken it up yet"
    waits = part.node.report.waiting.get(str(intent.placement.key(part.shard)))
    return waits or f"{part.node.name} has not taken it up yet"


def _stopping(intent: Intent, parts: Sequence[Seen]) -> str:
    for part in parts:
        if not is_gone(intent, part):
            detail = part.report.why if part.heard and part.report else _silence(part)
            return f"{intent.why}; {detail}"
    return intent.why


def to_mermaid() -> str:
    """Render MOVES as a mermaid state diagram for the docs."""
    lines = [f"    {start} --> {end}" for start in ReplicaPhase for end in sorted(MOVES[start])]
    return "\n".join(["stateDiagram-v2", *lines])
