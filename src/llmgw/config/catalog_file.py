"""A catalog as an operator writes it: models, and for a store of `none` also nodes and keys.

    models:            what is wanted, in the fields of core's Model and Profile
    nodes: [gpu-1]     names or ids of the nodes that belong     (`llmgw serve --store none` only)
    keys:              id, hash, account, models of client keys  (`llmgw serve --store none` only)

Everything that is wrong is said at once, with field, line and remedy. What one engine refuses is
not known here: ask `engines.check.check_plans` too.
"""

import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from llmgw.config.shape import InvalidShapeError, Place, Shape
from llmgw.config.written import (
    InvalidInputError,
    Written,
    parse_json,
    read_written,
    read_written_from,
)
from llmgw.core.fleet.catalog import Catalog, Model, Problem, Profile
from llmgw.core.fleet.validation import check
from llmgw.core.traffic.snapshot import ApiKey

NODES_MAX: Final = 256
KEYS_MAX: Final = 10_000
PAGE: Final = "docs/reference/catalog.md"
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_PART: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """What a catalog file says."""

    models: tuple[Model, ...] = ()
    nodes: tuple[str, ...] = ()
    keys: tuple[ApiKey, ...] = ()

    @property
    def catalog(self) -> Catalog:
        """The models, as a catalog without a revision."""
        return Catalog(self.models)


def read_catalog(file: Path) -> CatalogFile:
    """Read a YAML or JSON file; raise InvalidInputError with all that is wrong.

    A `source` that begins with `./` or `../`, or ends with .gguf without being absolute, is
    meant from the file's folder.
    """
    return _checked(read_written(file), str(file), file.absolute().parent)


def read_catalog_from(stream: BinaryIO, where: str) -> CatalogFile:
    """Read the same, YAML or JSON, from what is open; relative sources are meant from here."""
    return _checked(read_written_from(stream, where), where, Path.cwd())


def parse_catalog(text: str) -> CatalogFile:
    """Read the same from JSON text that came from elsewhere: relative sources stay wrong."""
    return _checked(parse_json(text, "the catalog"), "the catalog", None)


def _checked(written: Written, where: str, folder: Path | None) -> CatalogFile:
    try:
        content = Shape(CatalogFile, PAGE).read({} if written.data is None else written.data)
    except InvalidShapeError as error:
        found = tuple(_on_line(written, place, problem) for place, problem in error.found)
        raise InvalidInputError(where, (*_silent(written), *found)) from None
    if silent := _silent(written):
        raise InvalidInputError(where, silent)
    if folder is not None:
        content = replace(content, models=tuple(_from(folder, m) for m in content.models))
    problems = (*check(content.catalog), *_nodes(content), *_keys(content))
    if problems:
        placed = tuple(_on_line(written, _place(p.field), p) for p in problems)
        raise InvalidInputError(where, placed)
    return content


def _silent(written: Written) -> tuple[Problem, ...]:
    """Say that `models` is not there at all: an empty file would stop everything."""
    said = written.data
    if said is None or (isinstance(said, Mapping) and "models" not in said):
        what = "is missing, and without it nothing would be wanted"
        remedy = "add it; write `models: []` if everything is to be stopped"
        return (Problem("models", what, remedy),)
    return ()


def _from(folder: Path, model: Model) -> Model:
    def resolved(profile: Profile) -> Profile:
        source = profile.source
        relative = source.startswith(("./", "../")) or source.endswith(".gguf")
        if not relative or source.startswith("/"):
            return profile
        return replace(profile, source=os.path.normpath(folder / source))

    return replace(model, profiles=tuple(map(resolved, model.profiles)))


def _nodes(content: CatalogFile) -> Iterator[Problem]:
    if len(content.nodes) > NODES_MAX:
        what = f"there are {len(content.nodes)} nodes; the limit is {NODES_MAX}"
        yield Problem("nodes", what, "divide them among several llmgw")
    for i, node in enumerate(content.nodes):
        if not _NAME.fullmatch(node):
            what = f"{node[:80]!r} is neither a node's name nor its id"
            yield Problem(f"nodes[{i}]", what, "write what `llmgw agent inventory` shows")
        elif node in content.nodes[:i]:
            yield Problem(f"nodes[{i}]", f"{node!r} is listed twice", "keep one of them")


def _keys(content: CatalogFile) -> Iterator[Problem]:
    if len(content.keys) > KEYS_MAX:
        what = f"there are {len(content.keys)} keys; the limit is {KEYS_MAX}"
        yield Problem("keys", what, "remove those that are not used")
    names = {name for model in content.models for name in model.served_names}
    seen: set[str] = set()
    for i, key in enumerate(content.keys):
        path = f"keys[{i}]"
        if not _NAME.fullmatch(key.id):
            yield Problem(
                f"{path}.id", f"{key.id[:80]!r} cannot be an id", "use letters, digits, -"
            )
        elif key.id in seen:
            yield Problem(f"{path}.id", f"{key.id!r} is used already", "give every key its own")
        seen.add(key.id)
        if not _HASH.fullmatch(key.hash):
            # What stands there may be the key itself: never repeat it.
            remedy = "write what `printf %s KEY | sha256sum` prints, never the key itself"
            yield Problem(f"{path}.hash", "is no SHA-256 in lower-case hexadecimal", remedy)
        if not key.account.strip():
            yield Problem(f"{path}.account", "is empty", "name who pays")
        for name in key.models or ():
            if name not in names:
                what = f"there is no model {name[:80]!r} in this file"
                yield Problem(f"{path}.models", what, "write a model's name or alias")


def _place(field: str) -> Place:
    return tuple(int(index) if index else name for name, index in _PART.findall(field))


def _on_line(written: Written, place: Place, problem: Problem) -> Problem:
    line = written.line(place)
    return replace(problem, what=f"{problem.what} (line {line})") if line else problem
