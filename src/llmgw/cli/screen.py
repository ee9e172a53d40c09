"""Shows progress: a live table on a terminal, and one line per change where output is not one."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llmgw.cli.output import printable
from llmgw.runtime.clock import Clock

AGAIN_S: Final = 30.0
"""Lines are repeated so often where nothing changes: silence looks like a hang."""
REFRESHES_PER_S: Final = 4
COLOURS: Final = {
    "ready": "green",
    "failed": "red",
    "missing": "red",
    "silent": "yellow",
    "draining": "yellow",
    "stopping": "yellow",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is on its way; what it has no name, profile or place for is empty."""

    name: str
    """A replica's id and, behind a dot, which start of it this is."""
    profile: str
    nodes: str
    phase: str
    why: str
    last_log: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others, and stays from one start of a replica to the next."""
        return (self.profile, self.name.partition(".")[0])


class Screen(Protocol):
    """Where progress is shown."""

    def show(self, rows: Sequence[Row], about: str) -> None:
        """Show how things are."""
        ...

    def trouble(self, what: str) -> None:
        """Show why it cannot be told how things are."""
        ...

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave what was shown last."""
        ...


class LiveScreen:
    """A table that is drawn again in its place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=REFRESHES_PER_S, transient=False)

    def __enter__(self) -> Self:
        """See Screen."""
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See Screen."""
        self._live.stop()

    def show(self, rows: Sequence[Row], about: str) -> None:
        """See Screen."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("REPLICA", "PROFILE", "NODES", "PHASE"):
            table.add_column(head, no_wrap=True)
        table.add_column("WHY", overflow="fold")
        for row in rows:
            phase = Text(row.phase, style=COLOURS.get(row.phase, "cyan"))
            why = Text(printable(row.why))
            if row.last_log:
                why.append(f"\n{printable(row.last_log)}", style="dim")
            table.add_row(row.name, row.profile, row.nodes, phase, why)
        self._live.update(Group(table, Text(about, style="dim")) if about else table)

    def trouble(self, what: str) -> None:
        """See Screen."""
        self._live.update(Text(what, style="yellow"))


class PlainScreen:
    """Lines on stderr, one when a phase changes or a replica is started anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: dict[tuple[str, str], tuple[tuple[str, str], float]] = {}
        """What was said last of each thing: its name and phase, and when that was."""

    def __enter__(self) -> Self:
        """See Screen."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See Screen."""

    def show(self, rows: Sequence[Row], about: str) -> None:
        """See Screen."""
        _ = about
        for row in rows:
            last = f" | {printable(row.last_log)}" if row.last_log else ""
            where = f" on {row.nodes}" if row.nodes else ""
            what = " ".join(filter(None, (row.profile, row.name)))
            line = f"{what}{where}: {row.phase}, {printable(row.why)}{last}"
            self._say(row.key, (row.name, row.phase), line, done=row.phase == "ready")
        shown = {row.key for row in rows}
        for key in [key for key in self._said if key not in shown]:
            (name, _), _ = self._said.pop(key)
            if name:
                sys.stderr.write(f"{key[0]} {name}: gone\n")

    def trouble(self, what: str) -> None:
        """See Screen."""
        self._say(("", ""), ("", what), what, done=False)

    def _say(self, key: tuple[str, str], state: tuple[str, str], line: str, *, done: bool) -> None:
        now_s = self._clock.monotonic_s()
        said, at_s = self._said.get(key, (("", ""), 0.0))
        if said == state and (done or now_s - at_s < AGAIN_S):
            return
        self._said[key] = (state, now_s)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def screen_for(clock: Clock) -> Screen:
    """Return what suits stderr, which is where progress goes."""
    if sys.stderr.isatty():
        return LiveScreen(Console(stderr=True))
    return PlainScreen(clock)
