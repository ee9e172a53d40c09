from dataclasses import fields
from pathlib import Path

from llmgw.config.catalog_file import CatalogFile
from llmgw.config.loader import APPS, settings_of
from llmgw.config.reference import settings_page
from llmgw.core.fleet.catalog import Model, Profile, Restart
from llmgw.core.fleet.validation import OWN_VARIABLES

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def test_the_settings_page_is_what_the_classes_say() -> None:
    text = (REFERENCE / "settings.md").read_text()
    assert text == settings_page(), (
        "run: python -m llmgw.config.reference > docs/reference/settings.md"
    )


def test_every_setting_has_a_description() -> None:
    rows = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(settings_of(kind)) for kind in APPS)
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_field_of_a_catalog_is_documented() -> None:
    text = (REFERENCE / "catalog.md").read_text()
    kinds = (CatalogFile, Model, Profile, Restart)
    names = {f.name for kind in kinds for f in fields(kind)} - {"unknown"}
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_variables_that_llmgw_sets_are_documented() -> None:
    text = (REFERENCE / "catalog.md").read_text()
    keys = {"LLAMA_API_KEY", "VLLM_API_KEY"}
    assert sorted(v for v in OWN_VARIABLES.keys() - keys if f"`{v}`" not in text) == []
