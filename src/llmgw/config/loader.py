"""Reads an app's settings; the only reader of the environment.

A later source wins: defaults, the YAML file (`--config`, or LLMGW_APP_CONFIG), environment
variables LLMGW_APP_FIELD, the command line. Lists in variables are divided by commas, mappings are
`name=value,name=value`. An unknown name in any of them is refused, and every problem says which
source it came from, but never the value: it may be a secret.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import (
    Annotated,
    Final,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from llmgw.config.settings import (
    ADMIN_KEY_FILE,
    BASES,
    CTL_FILE,
    AgentSettings,
    CtlSettings,
    GatewaySettings,
    ServeSettings,
    UpSettings,
)
from llmgw.config.shape import InvalidShapeError, Place, Shape, nearest
from llmgw.config.written import InvalidInputError, read_written
from llmgw.core.fleet.catalog import Problem

S = TypeVar("S", ServeSettings, AgentSettings, GatewaySettings, UpSettings, CtlSettings)

APPS: Final[Mapping[type, str]] = {
    ServeSettings: "serve",
    AgentSettings: "agent",
    GatewaySettings: "gateway",
    UpSettings: "up",
    CtlSettings: "ctl",
}
NAME: Final = "llmgw"
SYSTEM_STATE: Final = Path("/var/lib/llmgw")
COMMAND_LINE: Final = "command line"
PAGE: Final = "docs/reference/settings.md"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process finds around itself."""

    environment: Mapping[str, str]
    root: bool
    host: str
    """The machine's name."""
    program: str = "llmgw"
    """What a person types here to run this program again."""


def surroundings() -> Surroundings:
    """Return this process's."""
    environment = dict(os.environ)
    program = _typed(sys.argv[0], environment.get("PATH", ""))
    return Surroundings(environment, os.geteuid() == 0, os.uname().nodename, program)


def _typed(program: str, path: str) -> str:
    """Return the name where the search path leads to this very program, else a path to it."""
    file = Path(program).absolute()
    if file.name != NAME or not file.exists():
        return NAME  # `python -m`, as daemons are started
    found = shutil.which(NAME, path=path)
    if found is not None and file.samefile(found):
        return NAME
    here = Path.cwd()
    near = file.relative_to(here) if file.is_relative_to(here) else file
    return shlex.quote(str(near) if len(near.parts) > 1 else f"./{near}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set."""

    place: tuple[str, ...]
    hint: object
    default: object
    """MISSING where the loader finds one."""

    @property
    def name(self) -> str:
        """As in a file and on the command line, `limits.idle_s`."""
        return ".".join(self.place)

    def variable(self, app: str) -> str:
        """As in the environment, `LLMGW_SERVE_LIMITS_IDLE_S`."""
        return "_".join((_prefix(app) + self.place[0], *self.place[1:])).upper()


def settings_of(kind: type) -> tuple[Setting, ...]:
    """Return everything that can be set in a settings class, in its order."""
    return tuple(_settings(kind, ()))


def default_state_dir(app: str, around: Surroundings) -> Path:
    """Return where an app keeps its state when nobody says: the system's place, or the user's."""
    if around.root:
        return SYSTEM_STATE / app
    state = Path(around.environment.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path(around.environment.get("HOME") or Path.home()) / ".local/state"
    return state / "llmgw" / app


def state_dir(app: str, around: Surroundings) -> Path:
    """Return where an app that is started here keeps its state, when its environment says so."""
    named = around.environment.get(f"{_prefix(app)}STATE_DIR".upper())
    return Path(named).expanduser().absolute() if named else default_state_dir(app, around)


def admin_key_files(around: Surroundings) -> tuple[Path, ...]:
    """Return where an admin key may be when `key_file` is not set, the likeliest first."""
    serve, up = (state_dir(app, around) for app in ("serve", "up"))
    return (serve / ADMIN_KEY_FILE, up / "serve" / ADMIN_KEY_FILE)


def ctl_file(around: Surroundings, overrides: Mapping[str, object]) -> Path | None:
    """Return the settings that a running `llmgw up` has written for ctl; None where it has not.

    Only where nobody says anything else: its key is not for another control plane.
    """
    environment = around.environment
    if any(f"LLMGW_CTL_{name}" in environment for name in ("CONFIG", "URL", "KEY_FILE")):
        return None
    if any(overrides.get(name) is not None for name in ("url", "key_file")):
        return None
    written = state_dir("up", around) / CTL_FILE
    return written if os.access(written, os.R_OK) else None


def load(
    kind: type[S],
    *,
    file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    around: Surroundings | None = None,
) -> S:
    """Return the settings of one app; raise InvalidInputError with all that is wrong.

    `overrides` are the command line's, by name (`limits.idle_s`); what is None was not given.
    """
    around = around or surroundings()
    app = APPS[kind]
    known = settings_of(kind)
    gathered = _Gathered({}, {}, {}, [])
    if file is None and (named := around.environment.get(f"{_prefix(app)}CONFIG".upper())):
        file = Path(named)
    _add_defaults(gathered, kind, app, around)
    if file is not None:
        _add_file(gathered, known, file)
    _add_environment(gathered, known, app, around.environment)
    _add_overrides(gathered, known, overrides or {})
    return _validated(kind, gathered, f"the settings of llmgw {app}")


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What all sources said so far."""

    data: dict[str, object]
    sources: dict[Place, str]
    bases: dict[str, Path]
    problems: list[Problem]

    def put(self, place: tuple[str, ...], value: object, source: str) -> None:
        """Set one value; one that does not fit where it should go is left to validation."""
        inside = self.data
        for name in place[:-1]:
            deeper = inside.get(name)
            deeper = dict(deeper) if isinstance(deeper, Mapping) else {}
            inside[name] = deeper
            inside = deeper
        inside[place[-1]] = value
        self.sources[place] = source

    def source(self, place: Place) -> str:
        while place:
            if place in self.sources:
                return self.sources[place]
            place = place[:-1]
        return ""


@runtime_checkable
class _Checked(Protocol):
    """Settings whose fields have to fit each other."""

    def problems(self) -> Iterator[Problem]: ...


def _validated(kind: type[S], gathered: _Gathered, where: str) -> S:
    problems = list(gathered.problems)
    try:
        settings: S = Shape(kind, PAGE).read(gathered.data, {BASES: gathered.bases})
    except InvalidShapeError as error:
        problems += [_sourced(problem, gathered.source(place)) for place, problem in error.found]
        raise InvalidInputError(where, tuple(problems)) from None
    if isinstance(settings, _Checked):
        for problem in settings.problems():
            problems.append(_sourced(problem, gathered.source(tuple(problem.field.split(".")))))
    if problems:
        raise InvalidInputError(where, tuple(problems))
    return settings


def _sourced(problem: Problem, source: str) -> Problem:
    return replace(problem, what=f"{problem.what} (from {source})") if source else problem


def _settings(kind: type, above: tuple[str, ...]) -> Iterator[Setting]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        hint, place = hints[each.name], (*above, each.name)
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _settings(hint, place)
        else:
            default = each.default
            if each.default_factory is not MISSING:
                default = each.default_factory()
            yield Setting(place, hint, default)


def _prefix(app: str) -> str:
    return f"LLMGW_{app.upper()}_"


def _add_defaults(gathered: _Gathered, kind: type, app: str, around: Surroundings) -> None:
    names = {each.name for each in fields(kind)}
    if "state_dir" in names:
        gathered.put(("state_dir",), default_state_dir(app, around), "default")
    if "name" in names:
        gathered.put(("name",), around.host, "this machine's name; set `name`")


def _add_file(gathered: _Gathered, known: Sequence[Setting], file: Path) -> None:
    written = read_written(file)
    if not isinstance(written.data, Mapping):
        problem = Problem("file", "is no mapping of settings", "write `name: value` lines")
        raise InvalidInputError(str(file), (problem,))
    groups = {setting.place[:-1] for setting in known}
    for place, value in _leaves(written.data, (), groups):
        line = written.line(place)
        source = f"{file}, line {line}" if line else str(file)
        gathered.put(place, value, source)
        gathered.bases[place[-1]] = file.absolute().parent


def _leaves(
    data: Mapping[str, object], above: tuple[str, ...], groups: set[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield single settings: `limits` is a group of them, `labels` is one."""
    for name, value in data.items():
        place = (*above, str(name))
        if place in groups and isinstance(value, Mapping):
            yield from _leaves(value, place, groups)
        else:
            yield place, value


def _add_environment(
    gathered: _Gathered, known: Sequence[Setting], app: str, environment: Mapping[str, str]
) -> None:
    variables = {setting.variable(app): setting for setting in known}
    chosen = f"{_prefix(app)}CONFIG"
    for variable in sorted(environment):
        if not variable.startswith(_prefix(app)) or variable == chosen:
            continue
        setting = variables.get(variable)
        if setting is None:
            what = "there is no such setting (from the environment)"
            gathered.problems.append(
                Problem(variable, what, nearest(variable, [*variables, chosen]))
            )
            continue
        value = _from_text(setting, environment[variable])
        _put_over(gathered, setting.place, value, f"environment {variable}")


def _add_overrides(
    gathered: _Gathered, known: Sequence[Setting], overrides: Mapping[str, object]
) -> None:
    names = {setting.name: setting for setting in known}
    for name, value in overrides.items():
        if value is None:
            continue
        setting = names.get(name)
        if setting is None:
            what = f"there is no such setting (from the {COMMAND_LINE})"
            gathered.problems.append(Problem(name, what, nearest(name, list(names))))
            continue
        if isinstance(value, str):
            value = _from_text(setting, value)
        _put_over(gathered, setting.place, value, COMMAND_LINE)


def _put_over(gathered: _Gathered, place: tuple[str, ...], value: object, source: str) -> None:
    gathered.put(place, value, source)
    gathered.bases.pop(place[-1], None)


def _from_text(setting: Setting, text: str) -> object:
    """Divide text where the setting is a list or a mapping; validation reads the rest."""
    kind = _origin(setting.hint)
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is Mapping:
        pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
        return {name.strip(): value.strip() for name, _, value in pairs}
    return text


def _origin(hint: object) -> object:
    if get_origin(hint) is Annotated:
        return _origin(get_args(hint)[0])
    return get_origin(hint)
