"""A catalog as the admin API takes it, and an edit of it in words."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Final

import msgspec

from llmgw.core.document import Json
from llmgw.core.fleet.catalog import Catalog, Model, Profile, runs_the_same

CHANGES_MAX: Final = 200
"""Sentences about one edit; a note says how many more there are."""


def written_form(catalog: Catalog) -> Json:
    """Return a catalog as people write it, ready to be applied again: no revision, no empty."""
    plain: Json = msgspec.to_builtins(catalog.models)
    return {"models": _bare(plain)}


def _bare(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {
            name: _bare(member)
            for name, member in value.items()
            if not (name == "unknown" and isinstance(member, Mapping))
        }
    if isinstance(value, list | tuple):
        return [_bare(member) for member in value]
    return value


def changes(old: Catalog, new: Catalog) -> tuple[str, ...]:
    """Say in words what an edit changes, and what that does to what runs."""
    found = list(_changes(old, new))
    if len(found) > CHANGES_MAX:
        return (*found[:CHANGES_MAX], f"and {len(found) - CHANGES_MAX} more")
    return tuple(found)


def _changes(old: Catalog, new: Catalog) -> Iterator[str]:
    before, after = ({m.name: m for m in catalog.models} for catalog in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"model {name} is removed: its replicas are drained and stopped"
        elif name not in before:
            yield f"model {name} is new"
            for profile in after[name].profiles:
                yield _new(profile)
        else:
            yield from _model_changes(before[name], after[name])


def _model_changes(old: Model, new: Model) -> Iterator[str]:
    if old.aliases != new.aliases:
        yield (
            f"model {new.name} is also called {', '.join(new.aliases) or 'nothing else'}: its "
            "replicas are replaced"
        )
    before, after = ({p.name: p for p in model.profiles} for model in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"profile {name} is removed: its replicas are drained and stopped"
        elif name not in before:
            yield _new(after[name])
        elif before[name] != after[name]:
            yield _profile_change(before[name], after[name])


def _profile_change(old: Profile, new: Profile) -> str:
    differs = [
        f"{f.name} from {_short(getattr(old, f.name))} to {_short(getattr(new, f.name))}"
        for f in fields(Profile)
        if getattr(old, f.name) != getattr(new, f.name)
    ]
    what = f"profile {new.name}: {', '.join(differs)}"
    if runs_the_same(old, new):
        return f"{what}; nothing is restarted"
    return f"{what}; its replicas are replaced one after the other"


def _new(profile: Profile) -> str:
    count = profile.replicas
    return f"profile {profile.name} is new, with {count} replica{'' if count == 1 else 's'}"


def _short(value: object) -> str:
    """Write a value as a catalog file has it, on one line."""
    if value is None or value in ((), {}):
        return "nothing"
    plain: Json = msgspec.to_builtins(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
