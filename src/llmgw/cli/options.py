"""Options that commands share, and how they become settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML file with settings.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting of docs/reference/settings.md; may be repeated.",
        show_default=False,
    ),
]
StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR", help="Where state is kept.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def overrides(sets: list[str] | None, **options: str | None) -> Mapping[str, str]:
    """Return what the command line sets, by setting; an option of its own wins over --set."""
    given: dict[str, str] = {}
    for one in sets or ():
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE", param_hint="--set")
        given[name.strip()] = value
    return given | {name: value for name, value in options.items() if value is not None}
