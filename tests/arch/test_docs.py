"""Documentation as tests see it: links lead somewhere, and every page can be found."""

import re
from pathlib import Path

import pytest

from tests.arch.tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def links(page: Path) -> set[Path]:
    """The files that a page links to."""
    return {(page.parent / target).resolve() for target in LINK.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not [target for target in links(page) if not target.exists()]


def test_every_page_can_be_found_from_the_readme() -> None:
    found: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        found.add(page)
        waiting += [target for target in links(page) if target.suffix == ".md"]
        waiting = [target for target in waiting if target not in found and target.exists()]
    assert not set(PAGES) - found, "link it from docs/README.md"


def test_the_license_is_the_whole_apache_license() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert all(f"\n   {number}. " in text for number in range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in text
