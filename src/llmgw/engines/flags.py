"""Flags in a profile's arguments: which an engine's plan does not let through, and why."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from llmgw.core.fleet.catalog import Problem

_NUMBER: Final = re.compile(r"-\d+(\.\d+)?")


def refused(arguments: tuple[str, ...], remedies: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem for each argument whose flag is in `remedies` (flag to remedy).

    `--flag=value` and underscores count as the flag too, since engines take them so.
    """
    for index, argument in enumerate(arguments):
        flag = canonical(argument)
        if flag in remedies:
            what = f"{argument.partition('=')[0]} is not for a profile to set"
            yield Problem(f"arguments[{index}]", what, remedies[flag])


def canonical(argument: str) -> str:
    """Return an argument's flag in the spelling of help texts; empty for what is no flag."""
    if not argument.startswith("-") or _NUMBER.fullmatch(argument):
        return ""
    flag = argument.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


def refused_variables(
    environment: Mapping[str, str], remedies: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a problem for each environment variable in `remedies` (name to remedy)."""
    for name in sorted(environment.keys() & remedies.keys()):
        yield Problem(f"environment.{name}", "is not for a profile to set", remedies[name])
