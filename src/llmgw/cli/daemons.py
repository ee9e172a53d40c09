"""`llmgw serve`, `llmgw agent` and `llmgw gateway`: settings in, a daemon until it is told to stop.

What a daemon needs is imported when it starts, so that each carries its own part of llmgw alone.
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import AsJson, Config, Sets, StateDir, overrides

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

Control = Annotated[
    str | None,
    typer.Option(
        "--control",
        metavar="HOST:PORT,...",
        help="Every control plane.",
        show_default=False,
    ),
]


def serve(
    *,
    config: Config = None,
    sets: Sets = None,
    state_dir: StateDir = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="sqlite:///PATH, postgresql://... or none."),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The catalog file; with --store none only."),
    ] = None,
) -> None:
    """Run the control plane, with a gateway inside."""
    from llmgw.apps.serve import run_serve
    from llmgw.config.loader import load, surroundings
    from llmgw.config.settings import ServeSettings

    given = overrides(sets, state_dir=state_dir, store=store, catalog=catalog)
    around = surroundings()
    settings = load(ServeSettings, file=config, overrides=given, around=around)
    _run(lambda stop: run_serve(settings, around, stop))


def agent(
    *,
    context: typer.Context,
    config: Config = None,
    sets: Sets = None,
    state_dir: StateDir = None,
    control: Control = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The node's name.", show_default=False)
    ] = None,
) -> None:
    """Run the agent of this node."""
    given = overrides(sets, state_dir=state_dir, control=control, name=name)
    if context.invoked_subcommand is not None:
        if given or config:
            raise typer.BadParameter(f"write options after {context.invoked_subcommand!r}")
        return
    from llmgw.apps.agent import run_agent
    from llmgw.config.loader import load, surroundings
    from llmgw.config.settings import AgentSettings

    around = surroundings()
    settings = load(AgentSettings, file=config, overrides=given, around=around)
    _run(lambda stop: run_agent(settings, around, stop))


def inventory(
    *,
    config: Config = None,
    sets: Sets = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what this machine has, as its agent reports it; needs no control plane."""
    from llmgw.apps.agent import read_inventory
    from llmgw.cli.inventory import show
    from llmgw.config.loader import load, surroundings
    from llmgw.config.settings import AgentSettings

    around = surroundings()
    given = overrides(sets, state_dir=state_dir)
    settings = load(AgentSettings, file=config, overrides=given, around=around)
    show(read_inventory(settings, around), as_json=as_json)


def gateway(
    *,
    config: Config = None,
    sets: Sets = None,
    state_dir: StateDir = None,
    control: Control = None,
) -> None:
    """Run a gateway as a process of its own."""
    from llmgw.apps.gateway import run_gateway
    from llmgw.config.loader import load, surroundings
    from llmgw.config.settings import GatewaySettings

    given = overrides(sets, state_dir=state_dir, control=control)
    around = surroundings()
    settings = load(GatewaySettings, file=config, overrides=given, around=around)
    _run(lambda stop: run_gateway(settings, around, stop))


def _run(main: "Callable[[asyncio.Event], Awaitable[None]]") -> None:
    import uvloop

    from llmgw.runtime.daemon import run_daemon
    from llmgw.runtime.log import set_up_logging

    set_up_logging(sys.stderr)
    run_daemon(main, loop_factory=uvloop.new_event_loop)
