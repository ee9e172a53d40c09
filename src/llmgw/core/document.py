"""One frozen type, one versioned JSON document: what is stored, sent and kept in directories.

A document type is a frozen dataclass with a field `unknown`. Members that this version does not
know, at any depth, wait there and are written out again unchanged, so a document may pass through
an older llmgw without loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeGuard, TypeVar

import msgspec

from llmgw.core.errors import InvalidRequestError

DOCUMENT_BYTES_MAX: Final = 1024 * 1024

if TYPE_CHECKING:
    Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
else:
    Json = object  # msgspec, which reads the fields' types, knows no type that contains itself


class Document(Protocol):
    """A frozen dataclass that keeps what it does not know."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # type: ignore[explicit-any]  # as typeshed has it

    @property
    def unknown(self) -> Mapping[str, Json]:
        """Members of the JSON document that this version has no field for."""
        ...


D = TypeVar("D", bound=Document)


class InvalidDocumentError(InvalidRequestError):
    """The text is not a document of that type."""

    code = "invalid_document"


def dump(document: Document) -> str:
    """Return the document as JSON, what was unknown at loading included."""
    known = msgspec.to_builtins(document)
    known.pop("unknown", None)
    return msgspec.json.encode(_merged(known, document.unknown)).decode()


def load(kind: type[D], text: str | bytes, bytes_max: int = DOCUMENT_BYTES_MAX) -> D:
    """Read a document; raise InvalidDocumentError that names the member which is wrong."""
    if len(text) > bytes_max:
        raise InvalidDocumentError(
            f"a {kind.__name__} document has {len(text)} bytes; the limit is {bytes_max}"
        )
    try:
        raw = msgspec.json.decode(text)
        value = msgspec.convert(raw, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidDocumentError(f"not a {kind.__name__} document: {error}") from error
    unknown = _leftover(raw, msgspec.to_builtins(value))
    return replace(value, unknown=unknown) if unknown else value


def _leftover(raw: Json, known: Json) -> dict[str, Json]:
    if raw == known:  # as it nearly always is; comparing is ten times as fast as walking
        return {}
    left: dict[str, Json] = {}
    for name, value, there in _members(raw, known):
        if there is _ABSENT:
            left[name] = value
        elif deeper := _leftover(value, there):
            left[name] = deeper
    return left


_ABSENT: Final[Sequence[Json]] = ["absent"]


def _members(raw: Json, known: Json) -> list[tuple[str, Json, Json]]:
    if isinstance(raw, Mapping) and isinstance(known, Mapping):
        return [(name, value, known.get(name, _ABSENT)) for name, value in raw.items()]
    if _is_list(raw) and _is_list(known) and len(raw) == len(known):
        return [(str(i), raw[i], known[i]) for i in range(len(raw))]
    return []


def _is_list(value: Json) -> TypeGuard[Sequence[Json]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _merged(known: Json, unknown: Json) -> Json:
    if not isinstance(unknown, Mapping):
        return unknown
    if isinstance(known, Mapping):
        added = {k: _merged(known[k], v) if k in known else v for k, v in unknown.items()}
        return {**known, **added}
    if _is_list(known):
        numbered = [(str(i), value) for i, value in enumerate(known)]
        return [_merged(v, unknown[i]) if i in unknown else v for i, v in numbered]
    return known
