"""`llmgw ctl keys`: client keys, each shown once, when it is made."""

from llmgw.admin.schema import KeyInfo, NewKey
from llmgw.cli.ctl.asking import Target, ask
from llmgw.cli.output import at, note, print_json, print_table, print_text
from llmgw.runtime.clock import SystemClock


def create(target: Target, new: NewKey, *, as_json: bool) -> None:
    """Make a key and print it: only the key goes to stdout, so that a script can take it."""
    made = ask(target, lambda client: client.make_key(new))
    if as_json:
        print_json({"key": made.key, "info": made.info})
        return
    note(
        f"key {made.info.id} for account {made.info.account}; "
        "it is shown this once, and only its hash is kept:"
    )
    print_text(made.key)


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
    gone = ask(target, lambda client: client.revoke_key(key))
    if as_json:
        print_json(gone)
    else:
        print_text(f"key {gone.id} ({gone.name}) is revoked; gateways refuse it from now on")
