"""The repository as tests about the code see it: files, syntax trees, who imports whom."""

import ast
import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.guards.parts import require

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "llmgw"
GENERATED: Final = SOURCE / "wire" / "pb"


def source_files() -> list[Path]:
    """Every module of llmgw that is written by hand."""
    return sorted(path for path in SOURCE.rglob("*.py") if GENERATED not in path.parents)


def files_of_tests() -> list[Path]:
    """Every module under tests."""
    return sorted((ROOT / "tests").rglob("*.py"))


def tracked_files() -> list[Path]:
    """Every text file that git tracks, but for pictures, archives and the like."""
    require("git", here=shutil.which("git") is not None, how="apt-get install git")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8000]]


@functools.cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(), filename=str(path))


def name_of(path: Path) -> str:
    """The short name in messages: gateway/journal.py, tests/arch/tree.py."""
    return str(path.relative_to(SOURCE if SOURCE in path.parents else ROOT))


def module_of(path: Path) -> str:
    """The dotted name of a module of llmgw."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[str]:
    """Every dotted name that a module may mean by its imports, relative ones resolved."""
    package = path.relative_to(SOURCE.parent if SOURCE in path.parents else ROOT).parent.parts
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
