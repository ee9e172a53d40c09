"""`llmgw ctl keys`: client keys, each shown once, when it is made."""

from llmgw.admin.client import AdminClient
from llmgw.admin.schema import KeyInfo, MadeKey, NewKey
from llmgw.cli.ctl.asking import Target, ask
from llmgw.cli.output import at, note, print_json, print_table, print_text, printable
from llmgw.cli.waiting import until_gateways_know
from llmgw.runtime.clock import SystemClock


def create(target: Target, new: NewKey, *, as_json: bool) -> None:
    """Make a key and print it: only the key goes to stdout, so that a script can take it."""
    made = ask(target, lambda client: make(client, new))
    for warning in made.warnings:
        note(printable(warning))
    if as_json:
        print_json({"key": made.key, "info": made.info, "warnings": made.warnings})
        return
    note(
        f"key {made.info.id} for account {made.info.account}; "
        "it is shown this once, and only its hash is kept:"
    )
    print_text(made.key)


async def make(client: AdminClient, new: NewKey) -> MadeKey:
    """Make a key, and see that gateways take it."""
    before = (await client.status()).snapshot
    made = await client.make_key(new)
    await _told(client, before)
    return made


async def _told(client: AdminClient, before: tuple[int, int] | None) -> None:
    if not await until_gateways_know(client, before, SystemClock()):
        note("not every gateway has acted on that yet; `llmgw ctl status` shows them")


def show(target: Target, *, as_json: bool) -> None:
    """Print all keys, without what proves them."""
    found = ask(target, lambda client: client.keys())
    if as_json:
        print_json(found)
        return
    now_s = SystemClock().wall_s()
    print_table(
        ("ID", "NAME", "ACCOUNT", "KEY", "MODELS", "MADE", "STATE"),
        (
            (
                key.id,
                key.name,
                key.account,
                key.shown,
                "all" if key.models is None else ",".join(key.models),
                at(key.created_wall_s),
                _state(key, now_s),
            )
            for key in found
        ),
        "no keys; `llmgw ctl keys create NAME` makes one",
    )


def _state(key: KeyInfo, now_s: float) -> str:
    if key.revoked_wall_s is not None:
        return f"revoked {at(key.revoked_wall_s)}"
    if key.expires_wall_s is None:
        return "valid"
    expired = key.expires_wall_s <= now_s
    return f"{'expired' if expired else 'valid until'} {at(key.expires_wall_s)}"


def revoke(target: Target, key: str, *, as_json: bool) -> None:
    """End a key for good."""

    async def work(client: AdminClient) -> KeyInfo:
        before = (await client.status()).snapshot
        valid = {one.id for one in await client.keys() if one.revoked_wall_s is None}
        gone = await client.revoke_key(key)
        if gone.id in valid:
            await _told(client, before)
        return gone

    gone = ask(target, work)
    if as_json:
        print_json(gone)
    else:
        print_text(f"key {gone.id} ({gone.name}) is revoked")
