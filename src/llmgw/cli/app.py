"""All commands, by name."""

from typing import Annotated

import typer

from llmgw.cli import daemons
from llmgw.cli.ctl.commands import add_commands
from llmgw.cli.up import demo, down, supervise, up
from llmgw.cli.usage import Command


def build_app() -> typer.Typer:
    """Return the command line."""
    app = _group("One OpenAI-compatible endpoint for the models you run on your own GPU machines.")
    app.callback()(_llmgw)
    app.command(cls=Command)(up)
    app.command(cls=Command)(down)
    app.command(cls=Command, hidden=True)(supervise)
    app.command(cls=Command, hidden=True)(demo)
    app.command(cls=Command)(daemons.serve)
    app.add_typer(_agent(), name="agent")
    app.command(cls=Command)(daemons.gateway)
    app.add_typer(_ctl(), name="ctl")
    return app


def _ctl() -> typer.Typer:
    app = _group("Operate a control plane.")
    nodes = _group("List nodes, or remove one.", invoke_without_command=True)
    keys = _group("List client keys, make or revoke one.", invoke_without_command=True)
    add_commands(app, nodes, keys)
    app.add_typer(nodes, name="nodes")
    app.add_typer(keys, name="keys")
    return app


def _agent() -> typer.Typer:
    app = _group("Run the agent of this node.", invoke_without_command=True)
    app.callback()(daemons.agent)
    app.command(cls=Command)(daemons.inventory)
    return app


def _group(about: str, *, invoke_without_command: bool = False) -> typer.Typer:
    return typer.Typer(
        help=about,
        no_args_is_help=not invoke_without_command,
        invoke_without_command=invoke_without_command,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Plain text: help is often piped, and the start of each command is faster.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _show_version(wanted: bool) -> None:  # noqa: FBT001 -- typer calls it with the flag alone
    if wanted:
        from importlib.metadata import version

        typer.echo(f"llmgw {version('llmgw')}")
        raise typer.Exit


def _llmgw(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    pass
