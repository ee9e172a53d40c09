"""Reads the runner's JSON: typed members by name, unknown ones ignored, a sentence if broken."""

import json
from collections.abc import Mapping
from typing import Final

FILE_BYTES_MAX: Final = 8 * 1024 * 1024


class BrokenFileError(Exception):
    """A file or message of the runner is not what it should be; the text says which and why."""


class Fields:
    """The members of one JSON object; `where` names the object in errors."""

    __slots__ = ("_members", "where")

    def __init__(self, members: Mapping[str, object], where: str) -> None:
        self._members = members
        self.where = where

    def _fault(self, name: str, wanted: str) -> BrokenFileError:
        return BrokenFileError(f"{self.where}: member {name!r} is not {wanted}")

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self._members.get(name)
        if not isinstance(value, str):
            raise self._fault(name, "a string")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A string, or nothing."""
        return None if self._members.get(name) is None else self.text(name)

    def whole(self, name: str) -> int:
        """A whole number that must be there."""
        value = self._members.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._fault(name, "a whole number")
        return value

    def whole_or_none(self, name: str) -> int | None:
        """A whole number, or nothing."""
        return None if self._members.get(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        """A number that must be there."""
        value = self._members.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._fault(name, "a number")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """A number, or nothing."""
        return None if self._members.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """True or false; absent is false."""
        value = self._members.get(name, False)
        if not isinstance(value, bool):
            raise self._fault(name, "true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; absent is empty."""
        return tuple(_as_text(value, self, name) for value in self._list(name))

    def pairs(self, name: str) -> dict[str, str]:
        """An object whose values are strings; absent is empty."""
        value = self._members.get(name, {})
        if not isinstance(value, dict):
            raise self._fault(name, "an object")
        return {str(key): _as_text(text, self, name) for key, text in value.items()}

    def item(self, name: str) -> "Fields | None":
        """A nested object, or nothing."""
        value = self._members.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._fault(name, "an object")
        return Fields(value, f"{self.where}: {name}")

    def items(self, name: str) -> tuple["Fields", ...]:
        """A list of nested objects; absent is empty."""
        found = []
        for index, value in enumerate(self._list(name)):
            if not isinstance(value, dict):
                raise self._fault(name, "a list of objects")
            found.append(Fields(value, f"{self.where}: {name}[{index}]"))
        return tuple(found)

    def _list(self, name: str) -> list[object]:
        value = self._members.get(name, [])
        if not isinstance(value, list):
            raise self._fault(name, "a list")
        return value


def _as_text(value: object, fields: Fields, name: str) -> str:
    if not isinstance(value, str):
        raise BrokenFileError(f"{fields.where}: member {name!r} holds something that is no string")
    return value


def parse(raw: bytes, where: str) -> Fields:
    """The JSON object in `raw`, or BrokenFileError."""
    try:
        value: object = json.loads(raw)
    except (ValueError, RecursionError) as fault:
        raise BrokenFileError(f"{where} is not JSON ({fault})") from fault
    if not isinstance(value, dict):
        raise BrokenFileError(f"{where} is not a JSON object")
    return Fields(value, where)
