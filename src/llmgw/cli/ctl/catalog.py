"""`llmgw ctl apply` and `llmgw ctl get`: the catalog, in and out."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from llmgw.admin.catalog import written_form
from llmgw.admin.client import AdminClient
from llmgw.admin.errors import InvalidCatalogError
from llmgw.admin.schema import Edit
from llmgw.cli.ctl.asking import Target, ask
from llmgw.cli.output import note, print_json, print_table, print_text
from llmgw.cli.screen import screen_for
from llmgw.cli.waiting import watch
from llmgw.config.catalog_file import CatalogFile, read_catalog, read_catalog_from
from llmgw.runtime.clock import SystemClock

STDIN: Final = Path("-")
EMPTY: Final = "the catalog is empty; `llmgw ctl apply FILE` fills it"


@dataclass(frozen=True, slots=True)
class Applying:
    """How a catalog is applied."""

    file: Path
    dry_run: bool = False
    wait_s: float | None = None
    """How long to wait until it is so; None: not at all."""


def apply(target: Target, applying: Applying, *, as_json: bool) -> None:
    """Make a file the catalog, and wait where that is asked."""
    content = _read(applying.file)
    if content.nodes or content.keys:
        note(
            f"{applying.file}: `nodes` and `keys` are only read by `llmgw serve --store none`; "
            "they are left out here"
        )

    async def work(client: AdminClient) -> Edit:
        edit = await put(client, content, dry_run=applying.dry_run)
        if not as_json and not edit.problems:
            say(edit, dry_run=applying.dry_run)
        if applying.wait_s is not None and not applying.dry_run:
            await _until_wanted(client, edit.revision, applying.wait_s)
        return edit

    edit = ask(target, work)
    if as_json:
        print_json(edit)
    if edit.problems:
        lines = "\n".join(f"  {problem}" for problem in edit.problems)
        raise InvalidCatalogError(f"{applying.file} cannot be used:\n{lines}", edit.problems)


def _read(file: Path) -> CatalogFile:
    if file == STDIN:
        return read_catalog_from(sys.stdin.buffer, "standard input")
    return read_catalog(file)


async def _until_wanted(client: AdminClient, revision: int, within_s: float) -> None:
    try:
        await until_wanted(client, revision, within_s)
    except asyncio.CancelledError:  # Ctrl-C
        note(f"revision {revision} is in force and goes on; `llmgw ctl status` shows how far it is")
        raise


async def put(client: AdminClient, content: CatalogFile, *, dry_run: bool = False) -> Edit:
    """Save a catalog, or try it."""
    return await client.put_catalog(content.catalog, dry_run=dry_run)


async def until_wanted(
    client: AdminClient, revision: int, within_s: float, ctl: str = "llmgw ctl"
) -> None:
    """Wait until what runs is what the catalog says; raise DeadlinePassedError.

    `ctl` is what a person types to operate this control plane.
    """
    clock = SystemClock()
    screen = screen_for(clock)
    await watch(client, lambda seen: seen.is_as_wanted(revision), within_s, screen, clock, ctl)


def say(edit: Edit, *, dry_run: bool) -> None:
    """Print what an edit changes."""
    for change in edit.changes:
        print_text(f"would change: {change}" if dry_run else change)
    if not edit.changes:
        print_text(f"nothing changes; the catalog is at revision {edit.revision}")
    elif dry_run:
        print_text(f"nothing was saved (dry run); the catalog stays at revision {edit.revision}")
    else:
        print_text(f"saved as revision {edit.revision}")


def get_catalog(target: Target, *, as_json: bool) -> None:
    """Print the catalog, ready to be applied again."""
    catalog = ask(target, lambda client: client.catalog())
    written = written_form(catalog)
    if as_json:
        print_json(written)
        return
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True)
    print_text(f"# Revision {catalog.revision}\n{text.rstrip()}")


def get_models(target: Target, *, as_json: bool) -> None:
    """Print how far each model is."""
    models = ask(target, lambda client: client.models())
    if as_json:
        print_json(models)
        return
    print_table(
        ("MODEL", "ALIASES", "READY", "WHY"),
        (
            (
                model.model,
                ", ".join(model.aliases),
                f"{sum(p.ready for p in model.profiles)}/{sum(p.replicas for p in model.profiles)}",
                "; ".join(f"{p.profile}: {p.why}" for p in model.profiles if p.why),
            )
            for model in models
        ),
        EMPTY,
    )


def get_profiles(target: Target, *, as_json: bool) -> None:
    """Print how far each profile is."""
    models = ask(target, lambda client: client.models())
    if as_json:
        print_json([profile for model in models for profile in model.profiles])
        return
    print_table(
        ("PROFILE", "MODEL", "ENGINE", "READY", "WHY"),
        (
            (p.profile, model.model, p.engine, f"{p.ready}/{p.replicas}", p.why)
            for model in models
            for p in model.profiles
        ),
        EMPTY,
    )
