"""`llmgw ctl status`, `replicas`, `nodes` and `usage`: how things are."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from llmgw.admin.schema import GpuInfo, NodeInfo, ReplicaInfo, Status
from llmgw.cli.ctl.asking import Target, ask
from llmgw.cli.output import aligned, print_json, print_table, print_text, printable, span
from llmgw.core.errors import InvalidRequestError
from llmgw.runtime.clock import SystemClock

HEADS: Final = {"account": "ACCOUNT", "key": "KEY", "model": "MODEL", "day": "DAY (UTC)"}
"""What usage is split by."""
UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def status(target: Target, *, as_json: bool) -> None:
    """Print everything at a glance."""
    found = ask(target, lambda client: client.status())
    if as_json:
        print_json(found)
        return
    print_text("\n".join(aligned([list(map(printable, line)) for line in _status(found)])))


def _status(found: Status) -> Iterator[tuple[str, str]]:
    lead = f"leads (term {found.term})" if found.leads else "stands by"
    yield "control plane", f"{lead}, version {found.version}"
    yield "store", found.store
    yield "catalog", f"revision {found.catalog_revision}"
    yield "nodes", f"{found.nodes_heard} of {found.nodes} heard"
    phases = ", ".join(f"{count} {phase}" for phase, count in sorted(found.replicas.items()))
    yield "replicas", phases or "none"
    for gateway in found.gateways:
        link = "linked" if gateway.linked else f"not heard for {span(gateway.silent_s)}"
        yield "gateway", f"{gateway.gateway}: {link}, {gateway.in_flight} requests in flight"
    if found.hold:
        yield "hold", found.hold
    if found.brake:
        yield "brake", found.brake
    for short in found.shortfalls:
        yield "missing", f"{short.missing} of {short.profile} ({short.model}): {short.why}"
    for stray in found.strays:
        yield "stray", f"{stray.replica} on {', '.join(stray.nodes)}: {stray.why}"
    for trouble in found.troubles:
        yield "trouble", trouble
    for warning in found.warnings:
        yield "warning", warning


def replicas(target: Target, *, as_json: bool) -> None:
    """Print every replica."""
    found = ask(target, lambda client: client.replicas())
    if as_json:
        print_json(found)
        return
    print_table(
        ("REPLICA", "MODEL", "PROFILE", "START", "PHASE", "NODES", "ADDRESS", "WHY"),
        (
            (
                one.replica,
                one.model,
                one.profile,
                one.incarnation,
                one.phase,
                ",".join(one.nodes),
                _address(one),
                one.why,
            )
            for one in found
        ),
        "no replicas; `llmgw ctl apply FILE` asks for some",
    )


def _address(replica: ReplicaInfo) -> str:
    if not replica.shards:
        return ""
    head = replica.shards[0]
    return f"{head.address}:{head.port}"


def nodes(target: Target, *, as_json: bool) -> None:
    """Print every node that belongs."""
    found = ask(target, lambda client: client.nodes())
    if as_json:
        print_json(found)
        return
    print_table(
        ("NODE", "ID", "STATE", "ADDRESS", "GPUS", "FREE", "SHARDS", "ENGINES", "WARNINGS"),
        (
            (
                node.name,
                node.node,
                node.state if node.state == "heard" else f"{node.state} {span(node.silent_s)}",
                node.address,
                _gpus(node),
                sum(map(_is_free, node.gpus)),
                node.shards,
                ", ".join(engine.partition(" ")[0] for engine in node.engines),
                "; ".join(node.warnings),
            )
            for node in found
        ),
        "no nodes yet; run `llmgw agent --control HOST:PORT` on each",
    )


def _gpus(node: NodeInfo) -> str:
    classes = sorted({gpu.gpu_class for gpu in node.gpus})
    return ", ".join(
        f"{sum(gpu.gpu_class == kind for gpu in node.gpus)} {kind}" for kind in classes
    )


def _is_free(gpu: GpuInfo) -> bool:
    return not gpu.replicas and not gpu.unusable


def remove_node(target: Target, node: str, *, as_json: bool) -> None:
    """Let a node belong no more."""
    ask(target, lambda client: client.remove_node(node))
    if as_json:
        print_json({"removed": node})
    else:
        print_text(f"node {node} belongs no more; when its agent comes back, it joins again")


def usage(target: Target, since: str | None, by: str | None, *, as_json: bool) -> None:
    """Print what was used."""
    split = tuple(part.strip() for part in (by or "").split(",") if part.strip())
    if wrong := [part for part in split if part not in HEADS]:
        raise InvalidRequestError(f"--by {wrong[0]}: usage is split by {', '.join(HEADS)}")
    since_s = None if since is None else moment(since, SystemClock().wall_s())

    found = ask(target, lambda client: client.usage(since_s, None, split))
    if as_json:
        print_json(found)
        return
    print_table(
        (*(HEADS[part] for part in split), "REQUESTS", "PROMPT", "COMPLETION", "CACHED", "EST."),
        (
            (
                *(_day(one.day) if part == "day" else getattr(one, part) for part in split),
                one.requests,
                one.prompt_tokens,
                one.completion_tokens,
                one.cached_tokens,
                one.estimated,
            )
            for one in found
        ),
        "nothing was used",
    )


def _day(day: int | None) -> str:
    return "" if day is None else (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")


def moment(text: str, now_wall_s: float) -> float:
    """Read `24h`, `7d` (ago) or a date, `2026-01-31` or with a time; raise InvalidRequestError."""
    if found := _SPAN.fullmatch(text):
        return now_wall_s - float(found[1]) * UNITS_S[found[2]]
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise InvalidRequestError(
            f"{text!r} is no moment; write how long ago (24h, 7d) or a date (2026-01-31)"
        ) from None


def seconds(text: str) -> float:
    """Read `90s`, `12h` or `30d`; raise InvalidRequestError."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise InvalidRequestError(f"{text!r} is no duration; write 90s, 15m, 12h or 30d")
    return float(found[1]) * UNITS_S[found[2]]
