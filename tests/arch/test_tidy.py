"""Tests about the code itself; each message says what to do instead."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.arch.tree import (
    ROOT,
    SOURCE,
    files_of_tests,
    imports_of,
    module_of,
    name_of,
    source_files,
    syntax,
    tracked_files,
)
from tests.guards.sleeps import fixed_sleeps

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
SCRIPT_LINES_MAX = 20

# The edges of a process: there what nobody foresaw becomes an answer or a log line.
BROAD_EXCEPT_ALLOWED = {
    "runtime/tasks.py",
    "gateway/http.py",
    "runner/__main__.py",
    "cli/__main__.py",
}

# They say that a thing is somewhere, not what it is.
NAMES_BANNED = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
BASE_ALLOWED = {"engines/base.py"}

# What starts without an import from llmgw: the commands, and what Alembic loads by itself.
STARTING_POINTS = (
    "cli/__main__.py",
    "runner/__main__.py",
    "apps/llama_server.py",
    "config/reference.py",
    "store/migrations/**/*.py",
    "testing/**/*.py",
)

# The guard itself looks again and again, up to a deadline.
SLEEPS_ALLOWED = {"tests/guards/leaks.py"}


@pytest.mark.parametrize("path", source_files() + files_of_tests(), ids=name_of)
def test_a_file_is_read_in_one_sitting_and_a_function_fits_a_screen(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= FILE_LINES_MAX, f"{lines} lines: split it along the noun it holds two of"
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines: name its parts"


def test_every_script_is_a_few_lines() -> None:
    lengths = {
        path.name: len(path.read_text().splitlines())
        for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]
        if path.is_file()
    }
    long = {name: length for name, length in lengths.items() if length > SCRIPT_LINES_MAX}
    assert not long, "what needs more lines is a module with tests"


def test_every_module_says_what_it_is_for() -> None:
    silent = [name_of(path) for path in source_files() if not ast.get_docstring(syntax(path))]
    assert not silent


def test_a_package_is_its_docstring() -> None:
    """What a package does is in modules with names; an import of it runs nothing."""
    full = [
        name_of(path)
        for path in source_files()
        if path.name == "__init__.py" and len(syntax(path).body) != 1
    ]
    assert not full


def broad_excepts(tree: ast.Module) -> list[int]:
    """Lines that catch everything, but for those that clean up and raise it on."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or {"Exception", "BaseException"} & _names_in(node.type))
        and not _raises_on(node)
    ]


def _raises_on(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _names_in(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def test_broad_excepts_live_at_the_edges() -> None:
    broad = {name_of(path) for path in source_files() if broad_excepts(syntax(path))}
    assert broad <= BROAD_EXCEPT_ALLOWED, "catch what you can handle; the edges catch the rest"


def test_a_broad_except_is_found_in_each_form() -> None:
    forms = ("except:", "except Exception:", "except (ValueError, BaseException) as error:")
    for form in forms:
        assert broad_excepts(ast.parse(f"try: x()\n{form} pass")) == [2]
    for form in ("except (ValueError, OSError): pass", "except BaseException:\n close()\n raise"):
        assert broad_excepts(ast.parse(f"try: x()\n{form}")) == []


def test_names_say_what_a_module_is() -> None:
    vague = {
        name_of(path)
        for path in source_files() + files_of_tests()
        if NAMES_BANNED & set(path.with_suffix("").parts[len(ROOT.parts) :])
        or (path.stem == "base" and name_of(path) not in BASE_ALLOWED)
    }
    assert not vague, "name the thing that is in it"


def test_every_module_is_reached_from_a_command() -> None:
    files = {module_of(path): path for path in source_files()}
    starts = {path for pattern in STARTING_POINTS for path in SOURCE.glob(pattern)}
    assert starts
    if SOURCE / "cli" / "__main__.py" not in starts:
        starts |= set(files_of_tests())  # until there is a command, a test is what uses a module
    reached: set[Path] = set()
    waiting = list(starts)
    while waiting:
        path = waiting.pop()
        reached.add(path)
        named = {files[name] for name in imports_of(path) if name in files}
        waiting += named - reached
    packages = {path for path in files.values() if path.name == "__init__.py"}
    unused = sorted(name_of(path) for path in set(files.values()) - reached - packages)
    assert not unused, "nothing uses it: wire it in, or remove it"


def test_the_runner_needs_the_standard_library_alone() -> None:
    foreign = {
        f"{name_of(path)}: {name}"
        for path in source_files()
        if path.is_relative_to(SOURCE / "runner")
        for name in imports_of(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith("llmgw.runner")
    }
    assert not foreign


def test_no_test_sleeps_for_a_fixed_time() -> None:
    sleeps = [
        f"{name_of(path)}:{line}"
        for path in files_of_tests()
        if name_of(path) not in SLEEPS_ALLOWED
        for line in fixed_sleeps(path.read_text())
    ]
    assert not sleeps, "wait for the condition: llmgw.testing.waiting.eventually"


# In pieces, so that this file does not find itself.
LEFT_FOR_LATER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(wo" + r"rk|fa" + r"rm|home/\w+|Users/\w+)/")
REGISTRIES = re.compile(
    r"(?i)(\bpypi\.(org|python\.org)|files\.python" + r"hosted\.org|registry\.npm" + r"js\.org"
    r"|deb\.deb" + r"ian\.org|--(extra-)?index-" + r"url\s+\S|--trusted-" + r"host\s+\S)"
)


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        (LEFT_FOR_LATER, "do it now, or leave it out"),
        (MACHINE_PATHS, "this path is one machine's"),
        (REGISTRIES, "where packages come from is the machine's affair"),
    ],
    ids=["left for later", "machine paths", "registries"],
)
def test_tracked_files_are_free_of(pattern: re.Pattern[str], advice: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_files()
        if path.name != "LICENSE"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, advice


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (LEFT_FOR_LATER, "# TO" + "DO: later"),
        (MACHINE_PATHS, "see /wo" + "rk/main/x"),
        (REGISTRIES, "--index-" + "url https://example.org/simple"),
        (REGISTRIES, "https://files.python" + "hosted.org/packages/x"),
    ],
)
def test_what_must_not_be_tracked_is_recognized(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


def setting_names() -> list[str]:
    """The fields of the settings classes, as they are written in files and documents."""
    return [
        field.target.id
        for path in (SOURCE / "config").glob("settings*.py")
        for node in syntax(path).body
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    ]


def test_every_setting_is_documented() -> None:
    page = ROOT / "docs" / "reference" / "settings.md"
    if not page.exists():
        return
    said = set(re.findall(r"\w+", page.read_text()))
    assert not [name for name in setting_names() if name not in said], f"say it in {page.name}"


def dependencies() -> set[str]:
    """The names of all that pyproject.toml asks for, at run time and for work on llmgw."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["llamacpp"],
        *project["dependency-groups"]["dev"],
    ]
    return {re.split(r"[^A-Za-z0-9-]", name)[0] for name in asked}


def test_every_dependency_says_what_it_earns_its_place_for() -> None:
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text()
    described = set(re.findall(r"(?m)^\| `([A-Za-z0-9-]+)` \| \S.* \|$", page))
    assert described == dependencies()


def pins(lock: str) -> dict[str, str]:
    """What a lock file pins; a line without hashes is not counted."""
    text = (ROOT / "scripts" / "lock" / f"{lock}.txt").read_text()
    return dict(re.findall(r"(?m)^([A-Za-z0-9._-]+)==(\S+) \\\n    --hash=sha256:", text))


def test_every_dependency_is_pinned_with_hashes() -> None:
    pinned = pins("dev")
    assert {re.sub("[-_.]+", "-", name).lower() for name in dependencies()} <= pinned.keys()
    assert pins("runtime").items() <= pinned.items(), "run scripts/lock/compile"
    for lock in ("runtime", "dev"):
        lines = (ROOT / "scripts" / "lock" / f"{lock}.txt").read_text().splitlines()
        assert sum("==" in line for line in lines) == len(pins(lock))
