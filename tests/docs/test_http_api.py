"""The page for clients names every path that the gateway serves, and no other."""

import re
from pathlib import Path

from llmgw.gateway.http import ENDPOINTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"


def test_the_page_names_what_the_gateway_serves() -> None:
    rows = set(re.findall(r"^\| `(\w+ /v1/[\w/]+)` \|", PAGE.read_text(), re.MULTILINE))
    served = {f"POST {endpoint.path}" for endpoint in ENDPOINTS.values()}
    assert rows == served | {"GET /v1/models"}
