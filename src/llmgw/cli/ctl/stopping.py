"""`llmgw ctl stop`: one replica, or all of a profile or model."""

from llmgw.admin.client import AdminClient
from llmgw.admin.schema import Stopped
from llmgw.cli.ctl.asking import Target, ask
from llmgw.cli.output import note, print_json, print_text
from llmgw.cli.screen import screen_for
from llmgw.cli.waiting import watch
from llmgw.core.errors import NotFoundError
from llmgw.runtime.clock import SystemClock


def stop(target: Target, name: str, wait_s: float | None, *, as_json: bool) -> None:
    """Stop what has this name."""

    async def work(client: AdminClient) -> Stopped:
        stopped = await _stop(client, name)
        if not as_json:
            _say(name, stopped)
        if wait_s is not None:
            await _until_gone(client, stopped, wait_s)
        return stopped

    stopped = ask(target, work)
    if as_json:
        print_json(stopped)


async def _stop(client: AdminClient, name: str) -> Stopped:
    """Find out what the name means: ids are random, so a replica and a profile never share one."""
    models = await client.models()
    for model in models:
        if name in (model.model, *model.aliases):
            return await client.stop_model(model.model)
    if any(profile.profile == name for model in models for profile in model.profiles):
        return await client.stop_profile(name)
    try:
        return await client.stop_replica(name)
    except NotFoundError:
        known = ", ".join(model.model for model in models) or "none"
        raise NotFoundError(
            f"there is no model, profile or replica {name}; models are: {known}; "
            "`llmgw ctl replicas` lists replicas"
        ) from None


def _say(name: str, stopped: Stopped) -> None:
    ids = ", ".join(stopped.replicas) or "nothing that runs"
    print_text(f"stopping {ids}")
    if stopped.revision is not None:
        note(
            f"the catalog (revision {stopped.revision}) now wants no replica of {name}; "
            "apply it again with replicas to start some"
        )
    else:
        note("where its profile still wants it, a new one takes its place")


async def _until_gone(client: AdminClient, stopped: Stopped, within_s: float) -> None:
    gone = set(stopped.replicas)
    clock = SystemClock()
    await watch(
        client,
        lambda seen: not any(replica.replica in gone for replica in seen.replicas),
        within_s,
        screen_for(clock),
        clock,
    )
