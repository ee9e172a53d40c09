"""The admin API over real HTTP, by its own client; and by hand where the client is too polite."""

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from llmgw.admin.client import connect
from llmgw.admin.errors import (
    STATUSES,
    AdminUnreachableError,
    InvalidCatalogError,
    error_of,
    status_of,
)
from llmgw.admin.schema import NewKey
from llmgw.control.admin_key import Door, admin_key
from llmgw.control.edits import Edits
from llmgw.control.http import AdminApi, AdminOptions
from llmgw.core.errors import (
    ConflictError,
    InvalidRequestError,
    LlmgwError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    UpstreamFailedError,
)
from llmgw.core.fleet.catalog import Catalog, EngineKind, Model, Restart
from llmgw.core.traffic.usage import Ending, Usage
from llmgw.testing.agent import FakeAgent
from llmgw.testing.fleet import catalog, placement, plan, profile
from tests.control.apis import KEY, Api, api_on, entropy, ready
from tests.control.planes import Nodes, on_file


async def test_an_applied_catalog_runs_and_is_shown(api: Api, nodes: Nodes) -> None:
    agent = await ready(api, nodes)
    status = await api.client.status()
    assert (status.leads, status.term, dict(status.replicas)) == (True, 1, {"ready": 1})
    assert (status.nodes, status.nodes_heard, status.catalog_revision) == (1, 1, 1)
    (replica,) = await api.client.replicas()
    (key,) = agent.alive
    assert (replica.replica, replica.phase, replica.nodes) == (key.replica, "ready", ("n1",))
    (shard,) = replica.shards
    assert (shard.key, shard.phase, shard.pid, shard.keyed) == (str(key), "ready", 4000, True)
    (node,) = await api.client.nodes()
    assert (node.node, node.state, node.shards) == ("n1", "heard", 1)
    assert [gpu.replicas for gpu in node.gpus] == [(key.replica,), ()]
    (model,) = await api.client.models()
    assert [(p.profile, p.ready, p.replicas) for p in model.profiles] == [("p", 1, 1)]


async def test_the_catalog_comes_back_as_it_was_applied(api: Api) -> None:
    wanted = Catalog((Model("m", (profile(environment={"A": "b"}),), ("alias",)),))
    edit = await api.client.put_catalog(wanted)
    assert (edit.saved, edit.revision) == (True, 1)
    assert await api.client.catalog() == replace(wanted, revision=1)
    again = await api.client.put_catalog(await api.client.catalog())
    assert (again.revision, again.changes) == (1, ())


async def test_a_dry_run_tells_what_would_change_and_changes_nothing(api: Api) -> None:
    await api.client.put_catalog(catalog(profile("a"), profile("b")))
    other = catalog(profile("a", replicas=3), profile("c", context_tokens=512))
    edit = await api.client.put_catalog(other, dry_run=True)
    assert (edit.saved, edit.revision, edit.problems) == (False, 1, ())
    assert edit.changes == (
        "profile a: replicas from 1 to 3; nothing is restarted",
        "profile b is removed: its replicas are drained and stopped",
        "profile c is new, with 1 replica",
    )
    assert (await api.client.catalog()).revision == 1


async def test_what_changes_is_written_as_a_catalog_has_it(api: Api) -> None:
    await api.client.put_catalog(catalog(profile("a")))
    other = profile("a", arguments=("--verbose",), token_probe=True, gpu_class="l40s-45g")
    other = replace(other, engine=EngineKind.VLLM, restart=Restart(2.0))
    edit = await api.client.put_catalog(catalog(other), dry_run=True)
    (told,) = edit.changes
    assert "engine from llamacpp to vllm" in told
    assert 'arguments from nothing to ["--verbose"]' in told
    assert "token_probe from false to true" in told
    assert "gpu_class from nothing to l40s-45g" in told
    assert '"delay_s": 2.0' in told


async def test_a_body_that_says_nothing_is_no_catalog(api: Api, nodes: Nodes) -> None:
    await ready(api, nodes)
    async with httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {KEY}"}) as h:
        answer = await h.put("/admin/v1/catalog", content=b"{}")
    assert answer.status_code == 400
    assert "`models: []`" in answer.json()["error"]["message"]
    assert (await api.client.catalog()).revision == 1


async def test_an_edit_that_began_at_an_older_revision_is_refused(api: Api) -> None:
    await api.client.put_catalog(catalog(profile("a")), 0)
    with pytest.raises(ConflictError, match="began at revision 0, the newest is 1"):
        await api.client.put_catalog(catalog(profile("b")), 0)


async def test_everything_that_is_wrong_with_a_catalog_is_said_at_once(api: Api) -> None:
    wrong = Catalog(
        (Model("m", (profile("a", replicas=-1), profile("b", arguments=("--port", "1")))),)
    )
    with pytest.raises(InvalidCatalogError) as found:
        await api.client.put_catalog(wrong)
    assert [p.field for p in found.value.problems] == ["models[0].profiles[0].replicas"]
    with pytest.raises(InvalidCatalogError) as found:
        await api.client.put_catalog(catalog(profile("b", arguments=("--port", "1"))))
    (problem,) = found.value.problems
    assert problem.field == "models[0].profiles[0].arguments[0]"
    assert "llmgw sets it" in problem.remedy
    assert (await api.client.catalog()).revision == 0


async def test_a_key_for_a_model_that_is_not_there_is_made_and_that_is_said(api: Api) -> None:
    await api.client.put_catalog(catalog(profile("a")))
    made = await api.client.make_key(NewKey(models=("m", "nope")))
    (told,) = made.warnings
    assert "no model is called 'nope'" in told
    assert "models are: m" in told
    assert made.info.models == ("m", "nope")
    assert (await api.client.make_key(NewKey())).warnings == ()


async def test_a_key_is_shown_once_and_reaches_the_gateways(api: Api) -> None:
    made = await api.client.make_key(NewKey("ci", "team", ("m",), 60.0))
    assert made.key.startswith("sk-")
    assert made.key not in repr(made)
    (info,) = await api.client.keys()
    assert info == made.info
    assert (info.name, info.account, info.models) == ("ci", "team", ("m",))
    assert info.expires_wall_s == info.created_wall_s + 60.0

    def hashes() -> list[str]:
        snapshot = api.plane.plane.publisher.current
        return [key.hash for key in snapshot.keys] if snapshot else []

    await api.plane.until(lambda: hashes() == [sha256(made.key.encode()).hexdigest()])
    revoked = await api.client.revoke_key(info.id)
    assert revoked.revoked_wall_s is not None
    await api.plane.until(lambda: hashes() == [])
    everything = json.dumps(await api.plane.events())
    assert made.key not in everything
    assert "was revoked" in everything


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (NewKey(account=" "), "account"),
        (NewKey(name="a\nb"), "name"),
        (NewKey(models=()), "models"),
        (NewKey(expires_in_s=-1.0), "expires_in_s"),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(api: Api, new: NewKey, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}: "):
        await api.client.make_key(new)
    assert await api.client.keys() == ()


async def test_a_stopped_replica_is_replaced_by_another(api: Api, nodes: Nodes) -> None:
    agent = await ready(api, nodes)
    (first,) = agent.alive
    await api.client.stop_replica(first.replica)
    await api.plane.until(
        lambda: (
            first not in agent.alive and len(agent.alive) == 1 and api.plane.phases() == ["ready"]
        )
    )
    with pytest.raises(NotFoundError, match="no replica nonsense"):
        await api.client.stop_replica("nonsense")


async def test_a_stopped_profile_or_model_stays_in_the_catalog_without_replicas(
    api: Api, nodes: Nodes
) -> None:
    agent = await ready(api, nodes, profile("a"), profile("b"))
    stopped = await api.client.stop_profile("a")
    assert (len(stopped.replicas), stopped.revision) == (1, 2)
    await api.plane.until(lambda: len(agent.alive) == 1)
    stopped = await api.client.stop_model("m")
    assert stopped.revision == 3
    await api.plane.until(lambda: agent.alive == [])
    assert [p.replicas for p in (await api.client.catalog()).models[0].profiles] == [0, 0]
    with pytest.raises(NotFoundError, match="no profile x"):
        await api.client.stop_profile("x")


async def test_a_node_can_be_removed_once_its_agent_is_stopped(api: Api, nodes: Nodes) -> None:
    agent = await ready(api, nodes)
    with pytest.raises(ConflictError, match="stop its agent first"):
        await api.client.remove_node("n1")
    agent.leave()
    await api.plane.until(lambda: api.plane.phases() == ["silent"])
    await api.client.remove_node("n1")
    await api.plane.until(lambda: "silent" not in api.plane.phases())
    assert await api.client.nodes() == ()
    status = await api.client.status()
    assert [short.missing for short in status.shortfalls] in ([1], [])
    with pytest.raises(NotFoundError):
        await api.client.remove_node("n1")


async def test_a_failing_replica_is_a_trouble_of_the_fleet_and_not_of_the_control_plane(
    api: Api, nodes: Nodes
) -> None:
    agent = await ready(api, nodes)
    (key,) = agent.alive
    agent.fail(key, "there is no file /models/m.gguf")
    await api.plane.until(lambda: api.plane.phases() != ["ready"])
    (told,) = (await api.client.status()).troubles
    assert "there is no file /models/m.gguf" in told
    assert f"llmgw ctl logs {key.replica}" in told
    async with httpx.AsyncClient(base_url=api.url) as http:
        assert (await http.get("/healthz")).json()["status"] == "ok"


async def test_events_can_be_waited_for(api: Api, nodes: Nodes) -> None:
    await api.client.make_key(NewKey())
    (first, *_) = await api.client.events(limit=1)
    agent = nodes.start(api.plane.endpoint)
    found = await api.client.events(first.id, wait_s=10.0)
    assert [event.what for event in found] == ["n1 is connected"]
    agent.happened("GPU-n1-0", "was lost")
    async for event in api.client.follow_events(found[-1].id):
        assert (event.subject, event.what) == ("GPU-n1-0", "was lost")
        break
    assert await api.client.events(found[-1].id, subject="nobody") == ()


def record(request: str, **fields: object) -> Usage:
    given: dict[str, object] = {"prompt_tokens": 3, "completion_tokens": 5, **fields}
    return Usage(
        request,
        1000.0,
        "k1",
        "team",
        "m",
        "/v1/completions",
        Ending.ANSWERED,
        200,
        **given,  # type: ignore[arg-type]
    )


async def test_a_node_that_another_store_s_leader_claims_is_shown(api: Api, nodes: Nodes) -> None:
    agent = FakeAgent(api.plane.endpoint)
    agent.store = "another"
    nodes.start(api.plane.endpoint, agent=agent)
    await api.plane.until(lambda: len(agent.assignments) > 0)
    (warning,) = (await api.client.status()).warnings
    assert "n1" in warning
    assert "another" in warning


async def test_usage_is_summed_up(api: Api) -> None:
    ledger = api.plane.plane.store.usage
    assert ledger is not None
    await ledger.add([record("r1"), record("r2", completion_tokens=7, estimated=True)], "g1")
    (total,) = await api.client.usage()
    assert (total.requests, total.prompt_tokens, total.completion_tokens) == (2, 6, 12)
    assert (total.estimated, total.model) == (1, None)
    (total,) = await api.client.usage(by=["model", "account"])
    assert (total.model, total.account, total.requests) == ("m", "team", 2)
    assert (await api.client.usage(2000.0))[0].requests == 0
    with pytest.raises(InvalidRequestError, match="by: 'colour' is not known"):
        await api.client.usage(by=["colour"])


async def test_without_the_key_nothing_is_told(api: Api) -> None:
    for given in ("", "sk-admin-wrong-wrong-wrong", KEY[:-1], f"{KEY}0"):
        async with connect(api.url, given) as other:
            with pytest.raises(NotAuthenticatedError, match=r"admin\.key") as refused:
                await other.status()
            assert KEY not in str(refused.value)
    async with httpx.AsyncClient(base_url=api.url) as plain:
        assert (await plain.get("/healthz")).json()["status"] == "ok"
        assert "llmgw_control_leads 1.0" in (await plain.get("/metrics")).text
        assert (await plain.get("/admin/v1/nothing")).status_code == 401


async def test_a_key_that_cannot_be_sent_is_not_repeated() -> None:
    with pytest.raises(NotAuthenticatedError, match="characters that no key has") as refused:
        async with connect("http://127.0.0.1:9", "sk-first\nsk-second"):
            pass
    assert "sk-" not in str(refused.value)


async def test_odd_requests_get_errors_in_the_same_form(api: Api) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=api.url, headers=headers) as plain:
        for method, path, body, status in (
            ("GET", "/admin/v1/nothing", b"", 404),
            ("PATCH", "/admin/v1/catalog", b"", 405),
            ("PUT", "/admin/v1/catalog", b"{", 400),
            ("PUT", "/admin/v1/catalog", b"\xff", 400),
            ("PUT", "/admin/v1/catalog?base=x", b"{}", 400),
            ("PUT", "/admin/v1/catalog", b" " * (1024 * 1024 + 1), 413),
            ("POST", "/admin/v1/keys", b'{"nmae": "x"}', 400),
            ("GET", "/admin/v1/events?limit=0", b"", 400),
            ("GET", "/admin/v1/events?wait=nan", b"", 400),
            ("GET", "/admin/v1/logs/x?lines=-1", b"", 400),
        ):
            answer = await plain.request(method, path, content=body)
            assert answer.status_code == status, (path, answer.text)
            assert answer.json()["error"]["message"], path
            assert answer.json()["error"]["code"], path


async def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    async with connect("http://127.0.0.1:9", KEY) as client:
        with pytest.raises(AdminUnreachableError, match="nothing answers at http"):
            await client.status()


FILE = """
models: []
nodes: [n1]
keys: [{id: k1, hash: HASH, account: team}]
""".replace("HASH", "ab" * 32)


async def test_without_a_store_edits_are_refused_with_what_to_do(
    tmp_path: Path, nodes: Nodes
) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text(FILE)
    async with on_file(file, settle_s=0.0) as plane, api_on(plane) as api:
        for refused in (
            api.client.put_catalog(catalog(profile())),
            api.client.make_key(NewKey()),
            api.client.revoke_key("k1"),
            api.client.usage(),
        ):
            with pytest.raises(NotAllowedError, match="without a store"):
                await refused
        assert [key.id for key in await api.client.keys()] == ["k1"]
        status = await api.client.status()
        assert "no store" in status.warnings[0]
        agent = FakeAgent(plane.endpoint)
        (spec,) = plan(placement("stray"))
        agent.adopt(spec)
        nodes.start(plane.endpoint, agent=agent)
        await plane.until(lambda: len(agent.assignments) > 0)
        (stray,) = (await api.client.status()).strays
        assert (stray.replica, stray.nodes) == ("stray", ("n1",))
        await api.client.stop_replica("stray")
        await plane.until(lambda: agent.alive == [])


def test_the_admin_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "admin.key"
    key = admin_key(file, entropy)
    assert admin_key(file, entropy) == key
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert admin_key(file, entropy) == key
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("short\n")
    with pytest.raises(LlmgwError, match="fewer than"):
        admin_key(file, entropy)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "admin-api.md"


async def test_every_request_is_documented_and_every_documented_one_is_there(api: Api) -> None:
    options = AdminOptions("127.0.0.1", 0, "test", "a test's store")
    edits = Edits(api.plane.plane, entropy)
    app = AdminApi(api.plane.plane, edits, Door(KEY), options)._app()
    there = {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert there == set(re.findall(r"^\| `([A-Z]+ /\S+)`", PAGE.read_text(), re.MULTILINE))


def test_every_error_has_a_status_and_comes_back_as_what_it_was() -> None:
    for kind in (NotFoundError, ConflictError, NotAllowedError, UpstreamFailedError):
        error = kind("why")
        back = error_of(error.code, str(error), (), status_of(error))
        assert type(back) is kind
        assert str(back) == "why"
    assert status_of(AdminUnreachableError("x")) == 503
    assert min(STATUSES.values()) == 400
