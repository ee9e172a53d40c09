"""The diagrams in the documentation are those of the tables in the code."""

from pathlib import Path

import pytest

from llmgw.core.fleet import replica, shard

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


@pytest.mark.parametrize(
    "diagram", [shard.to_mermaid(), replica.to_mermaid()], ids=["shard", "replica"]
)
def test_the_page_shows_what_the_table_says(diagram: str) -> None:
    assert diagram in PAGE.read_text(), f"put this into {PAGE.name}:\n{diagram}"


def test_every_phase_is_explained() -> None:
    text = PAGE.read_text()
    phases = {*shard.Phase, *replica.ReplicaPhase}
    assert [p for p in phases if f"| {p} |" not in text] == []
