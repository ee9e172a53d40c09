"""The page for clients names every path and every error of the gateway, and no other."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import llmgw.core.traffic
import llmgw.gateway
from llmgw.core.errors import LlmgwError, NoCapacityError, NotAuthenticatedError
from llmgw.gateway.http import ENDPOINTS
from llmgw.gateway.render import status_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"
PACKAGES = (llmgw.core.traffic, llmgw.gateway)


def rows(pattern: str) -> list[tuple[str, ...]]:
    return [found.groups() for found in re.finditer(pattern, PAGE.read_text(), re.MULTILINE)]


def kinds(above: type[LlmgwError]) -> Iterator[type[LlmgwError]]:
    for kind in above.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_the_page_names_what_the_gateway_serves() -> None:
    served = {f"POST {endpoint.path}" for endpoint in ENDPOINTS.values()}
    named = {path for (path,) in rows(r"^\| `(\w+ /v1/[\w/]+)` \|")}
    assert named == served | {"GET /v1/models"}


def test_the_page_names_every_error_with_its_status() -> None:
    for package in PACKAGES:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    homes = tuple(f"{package.__name__}." for package in PACKAGES)
    own = {kind for kind in kinds(LlmgwError) if kind.__module__.startswith(homes)}
    raised: set[type[LlmgwError]] = own | {NoCapacityError, NotAuthenticatedError}
    told = {(str(status_of(kind.__new__(kind))), kind.code) for kind in raised}
    assert set(rows(r"^\| (\d+) \| `(\w+)` \|")) == told | {("500", "internal")}
