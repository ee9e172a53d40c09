"""Fleet's words into snapshot's: which models clients may name, and who answers for them."""

from collections.abc import Mapping
from dataclasses import replace

from llmgw.core.fleet.catalog import Catalog, Model
from llmgw.core.fleet.decision import Decision, ReplicaStatus, RouteTo
from llmgw.core.fleet.keys import engine_key
from llmgw.core.fleet.replica import ReplicaPhase
from llmgw.core.traffic.snapshot import ApiKey, Route, Snapshot, Target

_ON_ITS_WAY: Mapping[ReplicaPhase, str] = {
    ReplicaPhase.LOADING: "it is loading; try again in a while",
    ReplicaPhase.STARTING: "it is starting; try again in a while",
    ReplicaPhase.WAITING: "it is starting; try again in a while",
    ReplicaPhase.PLACED: "it is starting; try again in a while",
    ReplicaPhase.SILENT: "its machine is not heard at the moment",
    ReplicaPhase.FAILED: "it has failed and is started anew; the operator's `llmgw ctl status`"
    " says why",
    ReplicaPhase.DRAINING: "it is being stopped",
    ReplicaPhase.STOPPING: "it is being stopped",
}
"""The best news first. Sentences for clients: they name no machine, and change with the phase only,
so that a countdown does not make a new snapshot every second."""


def build_routes(catalog: Catalog, decision: Decision, secret: bytes | None) -> tuple[Route, ...]:
    """Return a route for each model of the catalog, by name; with a why where nobody answers."""
    routes = []
    for model in sorted(catalog.models, key=lambda m: m.name):
        targets = tuple(
            _target(to, secret)
            for to in sorted(decision.routes, key=lambda to: to.replica)
            if to.model == model.name
        )
        why = "" if targets else why_nobody(model, decision)
        routes.append(Route(model.name, model.aliases, targets, why=why))
    return tuple(routes)


def why_nobody(model: Model, decision: Decision) -> str:
    """Say to a client why no replica of a model answers."""
    if not any(profile.replicas for profile in model.profiles):
        return f"{model.name} is switched off"
    phases = {status.phase for status in decision.statuses if _is_of(status, model)}
    for phase, words in _ON_ITS_WAY.items():
        if phase in phases:
            return f"{model.name} has no replica that is ready: {words}"
    if any(short.model == model.name for short in decision.shortfalls):
        return (
            f"{model.name} has no replica: no machine has room for it; the operator's "
            "`llmgw ctl status` says what is in the way"
        )
    return f"{model.name} has no replica yet; try again in a while"


def _is_of(status: ReplicaStatus, model: Model) -> bool:
    return status.model == model.name


def _target(to: RouteTo, secret: bytes | None) -> Target:
    key = engine_key(secret, to.replica) if to.keyed and secret is not None else None
    return Target(to.replica, to.incarnation, to.host, to.port, key, to.confirmed, to.engine)


def next_snapshot(
    previous: Snapshot | None, term: int, routes: tuple[Route, ...], keys: tuple[ApiKey, ...]
) -> Snapshot:
    """Return the snapshot that says this; the very same one where there is nothing new."""
    keys = tuple(sorted(keys, key=lambda key: key.id))
    if previous is None:
        return Snapshot(term, 1, routes, keys)
    if (previous.term, previous.routes, previous.keys) == (term, routes, keys):
        return previous
    return replace(previous, term=term, revision=previous.revision + 1, routes=routes, keys=keys)
