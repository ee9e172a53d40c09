"""What people write, straight into frozen dataclasses: validation that finds everything at once.

A dataclass of core or of the settings is taken as it is: its fields are what may be written, its
defaults hold for what is not. Only `unknown` is left out: between daemons, members that a version
does not know survive, but what a person misspelt must not pass in silence.
"""

import difflib
import re
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

_QUOTED: Final = re.compile("'([^']*)'")
_LIST: Final = ("is no list", "write one: `[a, b]`, or a line `- a` for each")
_MAPPING: Final = ("is no mapping", "write `name: value` lines, or `{name: value}`")
_TEXT: Final = ("is no text", "write text, in quotes where it looks like a number")
_WHOLE: Final = ("is no whole number", "write one, without quotes")
_NUMBER: Final = ("is no number", "write one, without quotes")
_SWITCH: Final = ("is neither true nor false", "write `true` or `false`")
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "missing": ("is missing", "add it"),
    "tuple_type": _LIST,
    "list_type": _LIST,
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
    "mapping_type": _MAPPING,
    "string_type": _TEXT,
    "path_type": _TEXT,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "bool_type": _SWITCH,
    "bool_parsing": _SWITCH,
}
"""What is wrong and what to do, in words that are not Python's, by the validator's own names."""
_BOUNDS: Final[Mapping[str, str]] = {
    "greater_than_equal": "at least",
    "less_than_equal": "at most",
    "greater_than": "above",
    "less_than": "below",
}


class InvalidShapeError(ValueError):
    """The data does not fit; `found` pairs each problem with its place."""

    def __init__(self, found: tuple[tuple[Place, Problem], ...]) -> None:
        super().__init__("; ".join(str(problem) for _, problem in found))
        self.found = found


class Shape(Generic[T]):
    """Turns data into a `kind`, or says all that is wrong with it."""

    def __init__(self, kind: type[T], page: str) -> None:
        """Take the data's type, and the page of docs/ that says what may be written."""
        self._kind = kind
        self._page = page
        self._adapter: TypeAdapter[T] = TypeAdapter(cast("type[T]", _accepting(kind)))

    def read(self, data: object, context: Mapping[str, object] | None = None) -> T:
        """Return the value; raise InvalidShapeError. `context` is for validators of fields."""
        try:
            return self._adapter.validate_python(data, context=dict(context or {}))
        except ValidationError as error:
            details = error.errors(include_url=False)
            raise InvalidShapeError(tuple(self._problems(details))) from None

    def _problems(self, details: list[ErrorDetails]) -> Iterator[tuple[Place, Problem]]:
        for detail in details:
            place = tuple(part for part in detail["loc"] if part != "[key]")
            what, remedy = self._words(detail, place)
            yield place, Problem(path_text(place), what, remedy)

    def _words(self, detail: ErrorDetails, place: Place) -> tuple[str, str]:
        kind = detail["type"]
        if kind == "extra_forbidden":
            return "there is no such field", nearest(str(place[-1]), self._names(place[:-1]))
        if kind == "enum":
            # What was written is compared, never repeated: it may be a secret in a wrong place.
            known = _QUOTED.findall(str(detail["ctx"]["expected"]))
            return "is not known here", nearest(str(detail["input"]), known)
        if words := _KINDS.get(kind):
            return words
        if sign := _BOUNDS.get(kind):
            (bound,) = detail["ctx"].values()
            return f"is not {sign} {bound}", f"write a number {sign} {bound}"
        message = detail["msg"].removeprefix("Value error, ")
        what = message[:1].lower() + message[1:]
        return what, "write it so" if kind == "value_error" else f"see {self._page}"

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
