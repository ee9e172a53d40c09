"""Messages drawn at random, and a few by hand."""

from collections.abc import Mapping

from hypothesis import strategies as st

from llmgw.core.document import Json
from llmgw.core.fleet.assignment import Assignment, Command, Readiness, ShardSpec
from llmgw.core.fleet.catalog import EngineKind
from llmgw.core.fleet.hardware import Gpu, Inventory, PortRange
from llmgw.core.fleet.placement import Rendezvous
from llmgw.core.fleet.report import Event, Report, ShardReport
from llmgw.core.fleet.shard import Phase
from llmgw.core.ids import LinkId, NodeId, ReplicaId, ShardKey
from llmgw.core.traffic.snapshot import ApiKey, Change, Route, Snapshot, Target
from llmgw.core.traffic.usage import Ending, Usage
from llmgw.wire.messages import (
    Answer,
    Cancel,
    GatewayHello,
    Hello,
    Load,
    Question,
    Refusal,
    UsageBatch,
    UsageStored,
    Welcome,
)

# Anything that UTF-8 can hold: all planes, controls and the NUL, but no lone surrogates.
texts = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.text("23456789abcdefghjkmnpqrstvwxyz", min_size=10, max_size=10)
counts = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**31)
seconds = st.floats(0, 1e9)
json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
unknowns: st.SearchStrategy[Mapping[str, Json]] = st.dictionaries(
    texts.map(lambda name: f"future {name}"), json_values, max_size=2
)
string_maps = st.dictionaries(texts, texts, max_size=3)


def tuples(of: st.SearchStrategy[object], size_max: int = 3) -> st.SearchStrategy[tuple]:  # type: ignore[type-arg]
    """Short tuples."""
    return st.lists(of, max_size=size_max).map(tuple)


shard_keys = st.builds(ShardKey, ids.map(ReplicaId), small, small)
specs = st.builds(
    ShardSpec,
    replica=ids.map(ReplicaId),
    incarnation=small,
    node_rank=small,
    node_count=small,
    model=texts,
    profile=texts,
    engine=st.sampled_from(EngineKind),
    commands=tuples(st.builds(Command, texts, tuples(texts), string_maps, st.booleans())),
    address=texts,
    port=small,
    gpus=tuples(texts),
    memory_share=seconds,
    rendezvous=st.none() | st.builds(Rendezvous, texts, small),
    readiness=st.none() | st.builds(Readiness, texts, texts, texts, st.none() | small),
    key_variable=st.none() | texts,
    metrics_path=st.none() | texts,
    source=texts,
    unknown=unknowns,
)
inventories = st.builds(
    Inventory,
    node=ids.map(NodeId),
    name=texts,
    address=texts,
    machine=texts,
    boot=texts,
    cpus=small,
    gpus=tuples(
        st.builds(
            Gpu,
            uuid=texts,
            index=small,
            name=texts,
            gpu_class=texts,
            memory_mib=st.none() | small,
            compute_capability=st.none() | st.tuples(small, small),
            unusable=texts,
        )
    ),
    ports=st.builds(PortRange, small, small),
    ports_taken=tuples(small),
    labels=string_maps,
    warnings=tuples(texts),
    unknown=unknowns,
)
shard_reports = st.builds(
    ShardReport,
    key=shard_keys,
    phase=st.sampled_from(Phase),
    why=texts,
    spec=st.none() | specs,
    pid=st.none() | small,
    exit_status=st.none() | st.integers(-64, 255),
    started_ago_s=st.none() | seconds,
    keyed=st.booleans(),
    last_log=texts,
)
reports = st.builds(
    Report,
    inventory=inventories,
    shards=tuples(shard_reports),
    term=small,
    generation=small,
    refused=string_maps,
    events=tuples(st.builds(Event, texts, texts, seconds, small)),
    unknown=unknowns,
)
assignments = st.builds(
    Assignment,
    term=counts,
    generation=counts,
    shards=tuples(specs),
    keys=st.dictionaries(ids.map(ReplicaId), texts, max_size=3),
    keep=tuples(shard_keys),
)
agent_ups = (
    st.builds(Hello, ids.map(NodeId), texts, texts, texts, texts, counts, texts)
    | reports
    | st.builds(Answer, counts, tuples(texts), st.booleans(), texts)
)
welcomes = st.builds(
    Welcome,
    ids.map(LinkId),
    counts,
    texts,
    st.floats(0.01, 10),
    st.floats(11, 1e6),
    ledger=st.booleans(),
)
refusals = st.builds(Refusal, texts, seconds)
agent_downs = (
    welcomes
    | refusals
    | assignments
    | st.builds(Question, counts, texts, texts, string_maps)
    | st.builds(Cancel, counts)
)
usages = st.builds(
    Usage,
    request=texts,
    opened_wall_s=seconds,
    key=texts,
    account=texts,
    model=texts,
    path=texts,
    ending=st.sampled_from(Ending),
    status=small,
    prompt_tokens=small,
    estimated=st.booleans(),
    first_byte_s=st.none() | seconds,
    unknown=unknowns,
)
targets = st.builds(Target, texts, small, texts, small, st.none() | texts, st.booleans(), texts)
routes = st.builds(Route, texts, tuples(texts), tuples(targets), small, texts)
api_keys = st.builds(ApiKey, texts, texts, texts, st.none() | tuples(texts), st.none() | seconds)
gateway_ups = (
    st.builds(GatewayHello, ids, counts, counts)
    | st.builds(Load, counts, counts, st.dictionaries(texts, small, max_size=3))
    | st.builds(UsageBatch, counts, tuples(usages))
)
gateway_downs = (
    welcomes
    | refusals
    | st.builds(Snapshot, small, small, tuples(routes), tuples(api_keys), unknowns)
    | st.builds(
        Change,
        term=small,
        base=small,
        revision=small,
        routes=tuples(routes),
        routes_gone=tuples(texts),
        keys=tuples(api_keys),
        keys_gone=tuples(texts),
        unknown=unknowns,
    )
    | st.builds(UsageStored, counts)
)


def report(*shards: ShardReport, node: str = "n1") -> Report:
    """An ordinary one."""
    inventory = Inventory(NodeId(node), node, "127.0.0.1", f"machine of {node}", "boot")
    return Report(inventory, shards, term=1, generation=1)


def shard_report(
    replica: str = "r1", last_log: str = "", spec: ShardSpec | None = None
) -> ShardReport:
    """One that is ready."""
    key = ShardKey(ReplicaId(replica), 1, 0)
    return ShardReport(key, Phase.READY, "it answered", spec=spec, last_log=last_log)


def spec(replica: str = "r1", argument: str = "") -> ShardSpec:
    """A shard with one command."""
    return ShardSpec(
        replica=ReplicaId(replica),
        incarnation=1,
        node_rank=0,
        node_count=1,
        model="m",
        profile="p",
        engine=EngineKind.LLAMACPP,
        commands=(Command("engine", ("llama-server", argument)),),
        address="127.0.0.1",
        port=18100,
    )


def usage(number: int) -> Usage:
    """A record of a request that was answered."""
    return Usage(f"q{number}", 1.8e9, "k1", "a1", "m", "/v1/x", Ending.ANSWERED, 200)


def snapshot(routes_count: int, term: int = 1, revision: int = 1) -> Snapshot:
    """One with that many routes, each with a target and a key of its own."""
    every = range(routes_count)
    return Snapshot(
        term,
        revision,
        tuple(
            Route(
                f"model-{i:05}", (f"alias-{i}",), (Target(f"r{i}", 1, "10.0.0.1", 18100, "k" * 64),)
            )
            for i in every
        ),
        tuple(ApiKey(f"k{i:05}", "0" * 64, f"account-{i}") for i in every),
    )
