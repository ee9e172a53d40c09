"""`llmgw up` and `llmgw down`, as they are typed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import Config, Sets, StateDir, overrides

if TYPE_CHECKING:
    import asyncio

    from llmgw.admin.client import AdminClient

WAIT_S: Final = 1800.0


def up(
    *,
    config: Config = None,
    sets: Sets = None,
    state_dir: StateDir = None,
    catalog: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A catalog file to apply.", show_default=False),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running in the background.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long models may take to be ready.", min=0.1),
    ] = WAIT_S,
) -> None:
    """Run everything on this machine: control plane, gateway and agent.

    Ctrl-C stops all of it, engines too; with --detach, `llmgw down` does.
    """
    from llmgw.cli import machine
    from llmgw.config.loader import load, surroundings
    from llmgw.config.settings import UpSettings

    around = surroundings()
    given = overrides(sets, state_dir=state_dir, catalog=catalog)
    settings = load(UpSettings, file=config, overrides=given, around=around)
    one = machine.Machine(settings, around, timeout, late_is_failure=detach)

    async def then(client: "AdminClient", stop: "asyncio.Event") -> None:
        _ = stop
        machine.say_ready(one)
        if not detach:
            await machine.stay(client)

    if detach:
        argv = ["supervise", "--state-dir", str(settings.state_dir)]
        argv += ["--config", str(config.absolute())] if config is not None else []
        argv += [word for one_set in sets or () for word in ("--set", one_set)]
        machine.up_detached(one, argv, then)
    else:
        machine.up(one, then)


def supervise(*, config: Config = None, sets: Sets = None, state_dir: StateDir = None) -> None:
    """Run everything in the background; `llmgw up --detach` starts this."""
    from llmgw.cli import machine
    from llmgw.config.loader import load, surroundings
    from llmgw.config.settings import UpSettings

    around = surroundings()
    given = overrides(sets, state_dir=state_dir)
    settings = load(UpSettings, file=config, overrides=given, around=around)
    machine.supervise(settings, around)


def down(*, config: Config = None, sets: Sets = None, state_dir: StateDir = None) -> None:
    """Stop what `llmgw up` runs, engines too; also what a killed one left."""
    from llmgw.cli import machine
    from llmgw.config.loader import load, surroundings
    from llmgw.config.settings import UpSettings

    given = overrides(sets, state_dir=state_dir)
    machine.down_all(load(UpSettings, file=config, overrides=given, around=surroundings()))


def demo(
    *,
    model: Annotated[Path, typer.Option(metavar="FILE", help="A small chat model as a GGUF file.")],
    state_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where state is kept.")],
    port: Annotated[
        int | None,
        typer.Option(help="Of the gateway; else the usual or a free one.", show_default=False),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop everything after the answer; fail if it is none.")
    ] = False,
) -> None:
    """Show llmgw at work: start everything with one model file, ask, stream the answer."""
    from llmgw.cli import demo as showing
    from llmgw.config.loader import surroundings

    showing.run(showing.Demo(model, state_dir.absolute(), port, once), surroundings())
