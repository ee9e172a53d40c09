"""Finds fixed sleeps in tests: each is too short on some machine, and too long on all others."""

import ast
from collections.abc import Iterator
from typing import Final

SLEEPS: Final = frozenset({"asyncio.sleep", "time.sleep", "anyio.sleep"})


def fixed_sleeps(source: str) -> list[int]:
    """Return the lines that sleep. `asyncio.sleep(0)`, which only lets others run, is none."""
    tree = ast.parse(source)
    names = dict(_imported_names(tree))
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _full_name(node.func, names) in SLEEPS
        and not _is_zero(node)
    )


def _imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name


def _full_name(function: ast.expr, names: dict[str, str]) -> str:
    first, _, rest = ast.unparse(function).partition(".")
    known = names.get(first, first)
    return f"{known}.{rest}" if rest else known


def _is_zero(call: ast.Call) -> bool:
    return (
        len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    )
