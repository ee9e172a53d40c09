"""The engines that this node can start, found by configuration, search path or installed module."""

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.fleet.hardware import EngineFound
from llmgw.engines.base import Engine
from llmgw.engines.registry import ENGINES


@dataclass(frozen=True, slots=True)
class Program:
    """How an engine is started here: what stands in place of its usual program name."""

    kind: EngineKind
    argv: tuple[str, ...]
    version: str | None = None

    def found(self) -> EngineFound:
        """Return it as the inventory shows it."""
        return EngineFound(self.kind.value, shlex.join(self.argv), self.version)


@dataclass(frozen=True, slots=True)
class Programs:
    """All engines found, and what was configured but is not there."""

    found: tuple[Program, ...] = ()
    warnings: tuple[str, ...] = ()

    def of(self, kind: EngineKind) -> Program | None:
        """Return the program of a kind of engine, if this node has it."""
        return next((program for program in self.found if program.kind is kind), None)


def find_programs(configured: Mapping[str, str], search_path: str) -> Programs:
    """Look for every kind of engine: configuration, then search path, then installed modules."""
    found: list[Program] = []
    warnings: list[str] = []
    for kind, engine in ENGINES.items():
        if wanted := configured.get(kind.value):
            argv = _words(wanted)
            path = shutil.which(argv[0], path=search_path) if argv else None
            if path is None:
                warnings.append(
                    f"{kind}: the configured program {wanted} is not there or not executable;"
                    " correct the setting or install it"
                )
            else:
                found.append(Program(kind, (path, *argv[1:])))
        elif (program := _look(engine, search_path)) is not None:
            found.append(program)
    warnings += [
        f"{name}: no engine of this kind is known; use one of {', '.join(EngineKind)}"
        for name in sorted(set(configured) - {kind.value for kind in EngineKind})
    ]
    return Programs(tuple(found), tuple(warnings))


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:  # an open quote: no program has that name
        return ()


def _look(engine: Engine, search_path: str) -> Program | None:
    for name in engine.programs:
        if path := shutil.which(name, path=search_path):
            return Program(engine.kind, (str(Path(path).absolute()),))
    module = engine.module
    if module is not None and importlib.util.find_spec(module.needs) is not None:
        return Program(engine.kind, (sys.executable, "-m", module.module))
    return None
