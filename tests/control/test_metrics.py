"""The list of metrics in the docs is the list of metrics."""

import re
from pathlib import Path

from llmgw.control.metrics import render
from llmgw.testing.fleet import catalog, profile
from tests.control.planes import Nodes, on_sqlite

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics-control.md"


async def test_every_metric_is_documented_and_every_documented_metric_is_there(
    tmp_path: Path, nodes: Nodes
) -> None:
    async with on_sqlite(tmp_path) as plane:
        nodes.start(plane.endpoint)
        await plane.apply(catalog(profile()))
        await plane.until(lambda: plane.phases() == ["ready"])
        text = render(plane.plane).decode()
    shown = set(re.findall(r"^(llmgw_\w+)", text, re.MULTILINE))
    documented = set(re.findall(r"^\| `(llmgw_\w+)`", PAGE.read_text(), re.MULTILINE))
    assert shown == documented
    assert 'llmgw_control_replicas{phase="ready"} 1.0' in text
    assert 'llmgw_control_nodes{state="heard"} 1.0' in text
