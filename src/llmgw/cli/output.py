"""What commands print: aligned columns for people, JSON for scripts; never colours or boxes."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

GAP: Final = "  "
MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0


def print_json(value: object) -> None:
    """Print one document."""
    print_text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: object) -> None:
    """Print one of many documents, each on a line."""
    print_text(msgspec.json.encode(value).decode())


def print_text(text: str) -> None:
    """Print text now: who reads it may be another program."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something to the person, beside what a script reads."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], none: str) -> None:
    """Print aligned columns, or the sentence `none` where there are no rows."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        note(none)
        return
    print_text("\n".join(aligned([list(heads), *cells])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines in which each column begins below itself."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    return printable(str(value))


def printable(text: str) -> str:
    """Keep what engines wrote from moving the cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def span(seconds: float) -> str:
    """Return a duration as people say it."""
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def at(wall_s: float) -> str:
    """Return a moment in local time with its zone, as `--since` takes it too."""
    local = datetime.fromtimestamp(wall_s, UTC).astimezone()
    return local.isoformat(sep=" ", timespec="seconds")
