"""What is wrong in the fleet now, each thing with its reason and what to do about it: pure."""

from collections.abc import Iterator

from llmgw.control.reconciler import Seen
from llmgw.core.fleet.decision import ReplicaStatus
from llmgw.core.fleet.replica import ReplicaPhase
from llmgw.core.fleet.view import NodeView

LEAVING = frozenset({ReplicaPhase.DRAINING, ReplicaPhase.STOPPING})


def is_failing(status: ReplicaStatus) -> bool:
    """Tell whether a replica has failed and has not become ready since, whatever it does now."""
    left = status.phase in LEAVING or status.phase is ReplicaPhase.READY
    return status.failures > 0 and not left


def troubles(seen: Seen) -> Iterator[str]:
    """Yield them: failing replicas first, then nodes that are not heard, with what they hold."""
    for status in seen.decision.statuses:
        if is_failing(status):
            yield _failing(seen, status)
    for node in sorted(seen.view.nodes.values(), key=lambda view: view.name):
        if not node.heard and not _is_expected(seen, node):
            yield _not_heard(seen, node)


def _failing(seen: Seen, status: ReplicaStatus) -> str:
    who = f"replica {status.replica} of profile {status.profile}"
    where = f" on {', '.join(status.nodes)}" if status.nodes else ""
    why = status.why
    if status.phase is not ReplicaPhase.FAILED:
        intent = seen.view.intents.get(status.replica)
        last = intent.failures[-1].why if intent and intent.failures else ""
        why = f"{status.phase} again after a failure: {last}" if last else why
    return (
        f"{who}{where}: {why}; read `llmgw ctl logs {status.replica}`, mend the profile or the "
        "node, and apply the catalog again"
    )


def _is_expected(seen: Seen, node: NodeView) -> bool:
    """Tell whether a node may simply not have come yet: this control plane is young."""
    return node.report is None and node.silent_s < seen.view.rules.settle_s


def _not_heard(seen: Seen, node: NodeView) -> str:
    held = [
        status.replica
        for status in seen.decision.statuses
        if node.name in status.nodes and status.phase is ReplicaPhase.SILENT
    ]
    what = f"has not been heard for {node.silent_s:.0f} s"
    if node.report is None:
        what = f"has not reported in the {node.silent_s:.0f} s that this control plane knows it"
    with_it = f", nor its replicas {', '.join(held)}, which may be serving" if held else ""
    return (
        f"node {node.name} {what}{with_it}; see that the machine is up and `llmgw agent` runs on "
        f"it (its log says why it cannot connect); `llmgw ctl nodes rm {node.name}` if it is gone "
        "for good"
    )
