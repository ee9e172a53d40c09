"""The immutable view by which a gateway routes, authenticates and limits.

A gateway gets a whole snapshot at the start of each link and then changes. Of two it obeys the one
with the higher (term, revision). Targets of nodes that the control plane has not heard yet are
unconfirmed: a gateway keeps such a target where it had it before, and never begins to use one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from llmgw.core.document import Json


@dataclass(frozen=True, slots=True)
class Target:
    """One replica that answers for a model: its head's address."""

    replica: str
    incarnation: int
    host: str
    port: int
    key: str | None = field(default=None, repr=False)
    """The engine's key; None where it has none."""
    confirmed: bool = True
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A model that clients may name, and who answers for it (perhaps nobody yet)."""

    name: str
    aliases: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    created_s: int = 0
    why: str = ""
    """Why nobody answers, for the client who meets that."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What proves a caller; only its hash exists here."""

    id: str
    hash: str
    """SHA-256 of the key, hexadecimal."""
    account: str
    models: tuple[str, ...] | None = None
    """Names that it covers; None means all."""
    expires_wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All a gateway knows."""

    term: int = 0
    revision: int = 0
    routes: tuple[Route, ...] = ()
    keys: tuple[ApiKey, ...] = ()
    unknown: Mapping[str, Json] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int]:
        """What decides which of two snapshots is obeyed."""
        return (self.term, self.revision)


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between two snapshots of one term."""

    term: int
    base: int
    """The revision that it applies to."""
    revision: int
    routes: tuple[Route, ...] = ()
    """New or changed."""
    routes_gone: tuple[str, ...] = ()
    keys: tuple[ApiKey, ...] = ()
    keys_gone: tuple[str, ...] = ()
    unknown: Mapping[str, Json] = field(default_factory=dict)


def change(old: Snapshot, new: Snapshot) -> Change:
    """Return what turns `old` into `new`."""
    routes, routes_gone = _changed({r.name: r for r in old.routes}, {r.name: r for r in new.routes})
    keys, keys_gone = _changed({k.id: k for k in old.keys}, {k.id: k for k in new.keys})
    return Change(new.term, old.revision, new.revision, routes, routes_gone, keys, keys_gone)


def changed(old: Snapshot, by: Change) -> Snapshot | None:
    """Apply a change; None if it is for another snapshot, and a whole one must be asked for."""
    if (old.term, old.revision) != (by.term, by.base):
        return None
    routes = {r.name: r for r in old.routes if r.name not in by.routes_gone}
    routes.update({r.name: r for r in by.routes})
    keys = {k.id: k for k in old.keys if k.id not in by.keys_gone}
    keys.update({k.id: k for k in by.keys})
    return replace(
        old,
        revision=by.revision,
        routes=tuple(routes[name] for name in sorted(routes)),
        keys=tuple(keys[id_] for id_ in sorted(keys)),
    )


def usable(previous: Snapshot, received: Snapshot) -> Snapshot:
    """Return `received` without the unconfirmed targets that `previous` did not have either."""
    known = {(t.replica, t.incarnation) for r in previous.routes for t in r.targets}

    def kept(targets: Iterable[Target]) -> tuple[Target, ...]:
        return tuple(t for t in targets if t.confirmed or (t.replica, t.incarnation) in known)

    routes = tuple(replace(r, targets=kept(r.targets)) for r in received.routes)
    return replace(received, routes=routes)


T = TypeVar("T")


def _changed(old: Mapping[str, T], new: Mapping[str, T]) -> tuple[tuple[T, ...], tuple[str, ...]]:
    gone = tuple(sorted(old.keys() - new.keys()))
    return tuple(new[name] for name in sorted(new) if old.get(name) != new[name]), gone
