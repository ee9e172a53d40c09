"""What llmgw has to know of an engine: its commands, who answers, and what its words mean.

An Engine is data and two pure functions. The control plane calls `plan` (also when an edit is
validated, with a trial placement); the agent looks for `programs`, and asks `ending` what to tell
people about an exit. Engines do not know each other: `engines.registry` joins them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from llmgw.core.fleet.assignment import ShardSpec
from llmgw.core.fleet.catalog import EngineKind, Problem
from llmgw.core.fleet.placement import Placement

LINE_CHARS_MAX: Final = 300
"""How much of a log line goes into a sentence."""


@dataclass(frozen=True, slots=True)
class Refused:
    """This placement cannot be turned into commands; each problem names a field of the profile."""

    problems: tuple[Problem, ...]

    @property
    def why(self) -> str:
        """One sentence."""
        return "; ".join(str(problem) for problem in self.problems)


Plan = tuple[ShardSpec, ...] | Refused
"""One spec per shard, by node rank, ready for an assignment."""


@dataclass(frozen=True, slots=True)
class ProgramModule:
    """A Python module that stands in where a node has no executable of the engine."""

    module: str
    """Started as `python -m MODULE` by the agent's own interpreter."""
    needs: str
    """The distribution that must be importable for it."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Text in an engine's log, and what it means for an operator."""

    text: str
    why: str
    """May name {host}, {port}, {source} and {line}."""
    port_taken: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an engine ended that nobody had asked to, as far as its log tells."""

    why: str
    port_taken: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. Stateless: whoever needs one takes it from the registry."""

    kind: EngineKind
    programs: tuple[str, ...]
    """Executables to look for on a node, the best first; argv[0] of a plan is the first."""
    plan: Callable[[Placement], Plan]
    serves_http: Callable[[int], bool]
    """Whether the shard of that node rank answers HTTP (probes, requests, metrics)."""
    version_pattern: re.Pattern[str]
    """Finds the version (its first group that matched) in what `version_arguments` print."""
    version_arguments: tuple[str, ...] = ("--version",)
    module: ProgramModule | None = None
    key_variable: str | None = None
    """Environment variable in which the engine expects its key."""
    loading: tuple[str, ...] = ()
    """Texts of log lines that show loading, where HTTP shows nothing."""
    signs: tuple[Sign, ...] = ()
    """The most telling first."""

    def version(self, output: str) -> str | None:
        """Read the version from what the program printed (stdout and stderr); None if unknown."""
        found = self.version_pattern.search(output)
        if found is None:
            return None
        return next((group for group in found.groups() if group), None)

    def shows_loading(self, line: str) -> bool:
        """Tell whether this log line shows that the engine has begun to load the model."""
        return any(text in line for text in self.loading)

    def ending(self, spec: ShardSpec, status: int | None, lines: Sequence[str]) -> Ending:
        """Say why the engine ended, from its exit status and its last log lines."""
        how = status_words(status)
        for sign in self.signs:
            line = next((each for each in reversed(lines) if sign.text in each), None)
            if line is not None:
                why = sign.why.format(
                    host=spec.address, port=spec.port, source=spec.source, line=_short(line)
                )
                return Ending(f"{why} ({how})", sign.port_taken)
        said = next((each for each in reversed(lines) if each.strip()), "")
        last = f"its last line was: {_short(said)}" if said else "it wrote nothing"
        return Ending(f"{self.programs[0]} ended without being asked to, {how}; {last}")


# core and engines may not import `signal`: these are Linux's numbers, the same on all its machines
# that have GPUs.
_SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip


def status_words(status: int | None) -> str:
    """Put an exit status (negative: a signal) into words."""
    if status is None:
        return "exit status unknown"
    if status >= 0:
        return f"exit status {status}"
    name = _SIGNALS.get(-status, f"signal {-status}")
    if name == "SIGKILL":
        return "killed by SIGKILL, perhaps by the kernel for want of memory"
    return f"killed by {name}"


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}..."
