"""YAML and JSON as people write them: bounded, no member given twice, lines remembered.

Aliases and merge keys of YAML work, but what they unfold to counts against the bound, so a small
file cannot become a huge one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import yaml

from llmgw.config.shape import Place
from llmgw.core.document import Json
from llmgw.core.errors import InvalidRequestError
from llmgw.core.fleet.catalog import Problem

BYTES_MAX: Final = 1024 * 1024
VALUES_MAX: Final = 100_000
DEPTH_MAX: Final = 32


class InvalidInputError(InvalidRequestError):
    """What somebody wrote cannot be used; `problems` says all that is wrong with it."""

    code = "invalid_input"

    def __init__(self, where: str, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join([f"{where} cannot be used:", *(f"  {p}" for p in problems)]))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Written:
    """A file's content, and the line on which each value stands where that is known."""

    data: Json
    lines: Mapping[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int | None:
        """Return the line of the value at `place`, or of what is nearest around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place) if place else None


def read_written(file: Path) -> Written:
    """Read a file that ends in .json as JSON, any other as YAML; raise InvalidInputError."""
    try:
        with file.open("rb") as opened:
            text = _text(opened, str(file))
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise _invalid(str(file), what, "check the path and who may read it") from error
    return parse_json(text, str(file)) if file.suffix == ".json" else parse_yaml(text, str(file))


def read_written_from(stream: BinaryIO, where: str) -> Written:
    """Read YAML, of which JSON is a part, from what is open; `where` names it in errors."""
    return parse_yaml(_text(stream, where), where)


def _text(stream: BinaryIO, where: str) -> str:
    raw = stream.read(BYTES_MAX + 1)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _invalid(where, "is not UTF-8 text", "save it as UTF-8") from error


def parse_json(text: str, where: str) -> Written:
    """Read JSON text; `where` names it in errors."""
    _bounded(text, where)
    try:
        data: Json = json.loads(text, object_pairs_hook=_unique)
    except _TwiceError as error:
        raise _invalid(where, f"{error} is given twice", "keep one of them") from error
    except (ValueError, RecursionError) as error:
        raise _invalid(where, f"is no JSON: {error}", "mend it there") from error
    return Written(data)


def parse_yaml(text: str, where: str) -> Written:
    """Read YAML text; `where` names it in errors."""
    _bounded(text, where)
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return Written({})
            lines = dict(_lines(node))
            data: Json = loader.construct_document(node)
        finally:
            loader.dispose()
    except _TwiceError as error:
        raise _invalid(where, f"{error} is given twice", "keep one of them") from error
    except _TooMuchError as error:
        raise _invalid(where, str(error), "divide it, and unfold its aliases") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _invalid(where, f"is no YAML: {_yaml_words(error)}", "mend it there") from error
    return Written(data, lines)


class _TwiceError(Exception):
    pass


class _TooMuchError(Exception):
    pass


def _bounded(text: str, where: str) -> None:
    if len(text) > BYTES_MAX:
        raise _invalid(where, f"has more than {BYTES_MAX} characters", "divide it")


def _invalid(where: str, what: str, remedy: str) -> InvalidInputError:
    return InvalidInputError(where, (Problem("file", what, remedy),))


def _yaml_words(error: Exception) -> str:
    """Say what is wrong and where, without the text around it: that may be a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} (line {mark.line + 1}, column {mark.column + 1})"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason} (at character {error.position})"
    return type(error).__name__


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members: dict[str, Json] = {}
    for name, value in pairs:
        if name in members:
            raise _TwiceError(repr(name))
        members[name] = value
    return members


def _lines(root: yaml.Node) -> Iterator[tuple[Place, int]]:
    """Walk the tree as its aliases unfold it, in bounded steps, and find members given twice."""
    left: list[tuple[Place, yaml.Node]] = [((), root)]
    count = 0
    while left:
        path, node = left.pop()
        count += 1
        if count > VALUES_MAX or len(path) > DEPTH_MAX:
            raise _TooMuchError(f"unfolds to more than {VALUES_MAX} values or {DEPTH_MAX} levels")
        yield path, node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            left += [((*path, i), each) for i, each in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            left += [((*path, name), value) for name, value in _members(node)]


def _members(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    seen: set[str] = set()
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name in seen and key.tag != "tag:yaml.org,2002:merge":
            raise _TwiceError(f"{name!r} on line {key.start_mark.line + 1}")
        seen.add(name)
        yield name, value
