"""`llmgw ctl`, as it is typed. What a command does is imported when it runs: starts stay fast."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.core import TyperGroup

from llmgw.cli.options import AsJson, Config, Sets, overrides
from llmgw.cli.usage import Command

if TYPE_CHECKING:
    from llmgw.cli.ctl.asking import Target

WAIT_S: Final = 1800.0
LINES: Final = 100

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is so, and show how far it is.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait at most.", min=0.1)
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")]
Lines = Annotated[
    int,
    typer.Option("--lines", "-n", metavar="COUNT", help="How many of the last.", min=1, max=1000),
]


class Kind(StrEnum):
    """What `get` gets."""

    CATALOG = "catalog"
    MODELS = "models"
    PROFILES = "profiles"


def add_commands(app: typer.Typer, nodes_app: typer.Typer, keys_app: typer.Typer) -> None:
    """Add all commands of `llmgw ctl`."""
    app.callback()(ctl)
    for command in (apply, get, status, replicas, logs, events, usage, stop):
        app.command(cls=Command)(command)
    nodes_app.callback()(nodes)
    nodes_app.command("rm", cls=Command)(remove_node)
    keys_app.callback()(keys)
    keys_app.command("create", cls=Command)(create_key)
    keys_app.command("list", cls=Command)(list_keys)
    keys_app.command("revoke", cls=Command)(revoke_key)


def ctl(
    *,
    context: typer.Context,
    config: Config = None,
    sets: Sets = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the admin API is.", show_default=False),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The file with the admin key.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Operate a control plane."""
    context.obj = (config, overrides(sets, url=url, key_file=key_file))
    if as_json:
        _hand_on_json(context)


def _hand_on_json(context: typer.Context) -> None:
    """Let `--json` before a command's name mean what it means behind it."""

    def below(command: object) -> dict[str, object]:
        commands = command.commands if isinstance(command, TyperGroup) else {}
        return {"as_json": True} | {name: below(each) for name, each in commands.items()}

    context.default_map = below(context.command)


def _target(context: typer.Context) -> "Target":
    from llmgw.cli.ctl.asking import Target

    config, given = context.obj
    return Target(config, given)


def apply(
    *,
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A catalog file, YAML or JSON; - is stdin.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Make a file the catalog: what it does not name is drained and stopped."""
    from llmgw.cli.ctl import catalog

    applying = catalog.Applying(file, dry_run, timeout if wait else None)
    catalog.apply(_target(context), applying, as_json=as_json)


def get(
    *,
    context: typer.Context,
    kind: Annotated[
        str, typer.Argument(metavar="|".join(Kind), help="What to get.")
    ] = Kind.CATALOG.value,
    as_json: AsJson = False,
) -> None:
    """Print the catalog as it could be applied again, or how far its parts are."""
    from llmgw.cli.ctl import catalog

    target = _target(context)
    if kind not in set(Kind):
        raise typer.BadParameter(f"there is no {kind!r}; use one of {', '.join(Kind)}")
    match Kind(kind):
        case Kind.CATALOG:
            catalog.get_catalog(target, as_json=as_json)
        case Kind.MODELS:
            catalog.get_models(target, as_json=as_json)
        case Kind.PROFILES:
            catalog.get_profiles(target, as_json=as_json)


def status(*, context: typer.Context, as_json: AsJson = False) -> None:
    """Show everything at a glance, troubles with what to do."""
    from llmgw.cli.ctl import looking

    looking.status(_target(context), as_json=as_json)


def replicas(*, context: typer.Context, as_json: AsJson = False) -> None:
    """List replicas: phase, place, and why."""
    from llmgw.cli.ctl import looking

    looking.replicas(_target(context), as_json=as_json)


def nodes(*, context: typer.Context, as_json: AsJson = False) -> None:
    """List nodes, or remove one."""
    if as_json:
        _hand_on_json(context)
    if context.invoked_subcommand is not None:
        return
    from llmgw.cli.ctl import looking

    looking.nodes(_target(context), as_json=as_json)


def remove_node(
    *,
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name or id.")],
    as_json: AsJson = False,
) -> None:
    """Let a node belong no more: what it ran is replaced."""
    from llmgw.cli.ctl import looking

    looking.remove_node(_target(context), node, as_json=as_json)


def keys(*, context: typer.Context, as_json: AsJson = False) -> None:
    """List client keys, make or revoke one."""
    if as_json:
        _hand_on_json(context)
    if context.invoked_subcommand is None:
        _list_keys(context, as_json=as_json)


def list_keys(*, context: typer.Context, as_json: AsJson = False) -> None:
    """List client keys."""
    _list_keys(context, as_json=as_json)


def _list_keys(context: typer.Context, *, as_json: bool) -> None:
    from llmgw.cli.ctl import keys as work

    work.show(_target(context), as_json=as_json)


def create_key(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose or what for.")],
    account: Annotated[str, typer.Option(metavar="ACCOUNT", help="Who pays.")] = "default",
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="Only for this model; may be repeated.", show_default=False
        ),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="90s, 15m, 12h or 30d.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a client key and print it, this once."""
    from llmgw.admin.schema import NewKey
    from llmgw.cli.ctl import keys as work
    from llmgw.cli.ctl.looking import seconds

    models = tuple(model) if model else None
    new = NewKey(name, account, models, None if expires_in is None else seconds(expires_in))
    work.create(_target(context), new, as_json=as_json)


def revoke_key(
    *,
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, never the key.")],
    as_json: AsJson = False,
) -> None:
    """End a client key for good."""
    from llmgw.cli.ctl import keys as work

    work.revoke(_target(context), key, as_json=as_json)


def logs(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="REPLICA|SHARD", help="Whose log.")],
    follow: Follow = False,
    lines: Lines = LINES,
    as_json: AsJson = False,
) -> None:
    """Print the log of a replica's head, or of a shard."""
    from llmgw.cli.ctl import following

    following.logs(_target(context), name, lines, follow=follow, as_json=as_json)


def events(
    *,
    context: typer.Context,
    subject: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Only of this replica, shard, node or GPU."),
    ] = None,
    follow: Follow = False,
    lines: Lines = LINES,
    as_json: AsJson = False,
) -> None:
    """Print what has happened."""
    from llmgw.cli.ctl import following

    following.events(_target(context), subject, lines, follow=follow, as_json=as_json)


def usage(
    *,
    context: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="24h, 7d (ago) or a date.", show_default=False),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT,...", help="account, key, model, day; one or more.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sum up what was used."""
    from llmgw.cli.ctl import looking

    looking.usage(_target(context), since, by, as_json=as_json)


def stop(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model, profile or replica.")],
    wait: Wait = False,
    timeout: Timeout = WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Stop all replicas of a model or profile, or one replica."""
    from llmgw.cli.ctl import stopping

    stopping.stop(_target(context), name, timeout if wait else None, as_json=as_json)
