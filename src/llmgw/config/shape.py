"""What people write, straight into frozen dataclasses: validation that finds everything at once.

A dataclass of core or of the settings is taken as it is: its fields are what may be written, its
defaults hold for what is not. Only `unknown` is left out: between daemons, members that a version
does not know survive, but what a person misspelt must not pass in silence.
"""

import difflib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin
from typing import get_type_hints as hints_of

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails

from llmgw.core.fleet.catalog import Problem

T = TypeVar("T")

Place = tuple[str | int, ...]
"""Where a value stands: member names and places in lists."""

UNKNOWN: Final = "unknown"


class InvalidShapeError(ValueError):
    """The data does not fit; `found` pairs each problem with its place."""

    def __init__(self, found: tuple[tuple[Place, Problem], ...]) -> None:
        super().__init__("; ".join(str(problem) for _, problem in found))
        self.found = found


class Shape(Generic[T]):
    """Turns data into a `kind`, or says all that is wrong with it."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._adapter: TypeAdapter[T] = TypeAdapter(cast("type[T]", _accepting(kind)))

    def read(self, data: object, context: Mapping[str, object] | None = None) -> T:
        """Return the value; raise InvalidShapeError. `context` is for validators of fields."""
        try:
            return self._adapter.validate_python(data, context=dict(context or {}))
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            raise InvalidShapeError(tuple(self._problems(details))) from None

    def _problems(self, details: list[ErrorDetails]) -> Iterator[tuple[Place, Problem]]:
        for detail in details:
            place = tuple(part for part in detail["loc"] if part != "[key]")
            what, remedy = self._words(detail, place)
            yield place, Problem(path_text(place), what, remedy)

    def _words(self, detail: ErrorDetails, place: Place) -> tuple[str, str]:
        message = detail["msg"].removeprefix("Value error, ")
        what = message[:1].lower() + message[1:]
        match detail["type"]:
            case "extra_forbidden":
                return "there is no such field", nearest(str(place[-1]), self._names(place[:-1]))
            case "missing":
                return "is missing", "add it"
            case "string_type":
                return what, "write text, in quotes where it looks like a number"
            case "value_error":
                return what, "write it so"
            case _:
                return what, "see the reference for what may stand there"

    def _names(self, place: Place) -> list[str]:
        """Return the fields that the dataclass at `place` has."""
        kind: object = self._kind
        for part in place:
            kind = _inside(kind, part)
        found = _dataclass_in(kind)
        return [] if found is None else [f.name for f in fields(found) if f.name != UNKNOWN]


def path_text(place: Place) -> str:
    """Write a place as people do, for instance `models[0].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".") or "file"


def nearest(name: str, known: list[str]) -> str:
    """Return what to do about a name that nobody knows."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"use one of {', '.join(known)}" if known else "remove it"


def _accepting(kind: object) -> object:
    """Return a type for pydantic that takes what may be written for `kind` and gives a `kind`."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _accepting_members(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None:
        return kind
    if origin is Annotated:
        return Annotated[(_accepting(arguments[0]), *arguments[1:])]
    inner = tuple(a if a is Ellipsis else _accepting(a) for a in arguments)
    if origin in (Union, types.UnionType):
        return reduce(or_, inner)
    return origin[inner]


def _accepting_members(kind: type[Any]) -> object:
    hints = hints_of(kind, include_extras=True)
    members: dict[str, Any] = {}
    for each in fields(kind):
        if each.name != UNKNOWN:
            needed = each.default is MISSING and each.default_factory is MISSING
            members[each.name] = (_accepting(hints[each.name]), ... if needed else None)
    config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    model: type[BaseModel] = create_model(kind.__name__, __config__=config, **members)
    return Annotated[model, AfterValidator(_into(kind))]


def _into(kind: type[object]) -> Callable[[BaseModel], object]:
    """Return what makes a `kind` of the members that were written; it has its own defaults."""

    def make(given: BaseModel) -> object:
        return kind(**{name: getattr(given, name) for name in given.model_fields_set})

    return make


def _inside(kind: object, part: str | int) -> object:
    """Return the type that stands at member or place `part` of `kind`."""
    found = _dataclass_in(kind)
    if found is not None and isinstance(part, str):
        return hints_of(found, include_extras=True).get(part)
    arguments = [a for a in get_args(kind) if a not in (Ellipsis, type(None))]
    return arguments[-1] if arguments else None


def _dataclass_in(kind: object) -> type[Any] | None:
    """Return the dataclass that `kind` is, also where it may be absent or is annotated."""
    if isinstance(kind, type) and is_dataclass(kind):
        return kind
    if get_origin(kind) in (Union, types.UnionType, Annotated):
        return next((f for f in map(_dataclass_in, get_args(kind)) if f is not None), None)
    return None
