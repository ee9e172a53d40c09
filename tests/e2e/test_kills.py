"""kill -9 of every part: what serves goes on, and afterwards the truth is found again."""

import os
import signal

import pytest

from llmgw.testing.waiting import until
from tests.e2e.cluster import READY_S, Cluster

pytestmark = pytest.mark.e2e

LONG = 900
"""Tokens of a stream that goes on for seconds."""


def tokens_of(lines: list[str]) -> int:
    """Count the pieces of an answer: the tiny model gives one token in each."""
    return sum('"content":' in line for line in lines)


def test_a_killed_agent_costs_nothing(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    stream = cluster.stream(LONG)
    cluster.kill("agent")
    assert cluster.ask().status_code == 200
    cluster.agent()
    lines = stream.finish()
    assert lines[-1] == "data: [DONE]"
    assert tokens_of(lines) >= LONG
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.one_engine() == engine
    assert len(cluster.runners()) == 1


def is_ready(cluster: Cluster) -> bool:
    """Whether the one replica is ready, and nothing else is there."""
    replicas = cluster.replicas()
    return [r["phase"] for r in replicas] == ["ready"] and cluster.node_is_heard()


def test_a_gateway_of_its_own_serves_while_the_control_plane_is_dead(cluster: Cluster) -> None:
    cluster.up_to_ready(gateway_inside=False)
    engine = cluster.one_engine()
    before = cluster.replicas()
    stream = cluster.stream(LONG)
    cluster.kill("serve")
    assert cluster.ask().status_code == 200
    stream.finish()
    assert cluster.ask().status_code == 200
    cluster.serve(gateway=False)
    cluster.wait_for_admin()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.ask().status_code == 200
    assert cluster.one_engine() == engine
    assert [(r["replica"], r["incarnation"]) for r in cluster.replicas()] == [
        (r["replica"], r["incarnation"]) for r in before
    ]


def test_serve_with_the_gateway_inside_comes_back_with_its_routes(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    cluster.kill("serve")
    cluster.serve()
    cluster.wait_for_answer(within_s=15)
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.one_engine() == engine


def test_both_daemons_killed_at_once_find_the_engine_again(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    cluster.kill("serve", "agent")
    cluster.agent()
    cluster.serve()
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.one_engine() == engine


def test_a_killed_runner_is_replaced_and_its_engine_goes_on(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine, runner = cluster.one_engine(), cluster.runners()[0]
    stream = cluster.stream(LONG)
    os.kill(runner, signal.SIGKILL)
    until(lambda: cluster.runners() not in ([], [runner]), within_s=20, saying=cluster.state)
    stream.finish()
    assert cluster.one_engine() == engine
    assert is_ready(cluster)


def test_a_killed_engine_is_started_anew_under_the_next_incarnation(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    os.kill(engine, signal.SIGKILL)
    until(lambda: cluster.engines() not in ([], [engine]), within_s=READY_S, saying=cluster.state)
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.replicas()[0]["incarnation"] == 2
    assert cluster.one_engine() != engine
    assert any("SIGKILL" in event["what"] for event in cluster.events())


def test_a_runner_and_its_engine_killed_at_once_are_started_anew(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine, runner = cluster.one_engine(), cluster.runners()[0]
    os.kill(runner, signal.SIGKILL)
    os.kill(engine, signal.SIGKILL)
    until(lambda: cluster.engines() not in ([], [engine]), within_s=READY_S, saying=cluster.state)
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.replicas()[0]["incarnation"] == 2
    cluster.one_engine()


def test_everything_killed_at_once_comes_back(cluster: Cluster) -> None:
    cluster.up_to_ready(gateway_inside=False)
    engine, runner = cluster.one_engine(), cluster.runners()[0]
    cluster.kill("serve", "agent", "gateway")
    os.kill(runner, signal.SIGKILL)
    os.kill(engine, signal.SIGKILL)
    cluster.gateway()
    cluster.agent()
    cluster.serve(gateway=False)
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.replicas()[0]["incarnation"] == 2
    assert cluster.one_engine() != engine


def test_daemons_and_runner_killed_while_the_engine_lives(cluster: Cluster) -> None:
    cluster.up_to_ready()
    engine, runner = cluster.one_engine(), cluster.runners()[0]
    cluster.kill("serve", "agent")
    os.kill(runner, signal.SIGKILL)
    cluster.agent()
    cluster.serve()
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.one_engine() == engine
    assert cluster.replicas()[0]["incarnation"] == 1
    assert len(cluster.runners()) == 1


def test_an_agent_killed_as_soon_as_a_runner_shows_leaves_one_engine(cluster: Cluster) -> None:
    cluster.serve()
    cluster.agent()
    cluster.wait_for_admin()
    cluster.make_key()
    cluster.apply(cluster.catalog())
    runs = cluster.folder / "agent" / "runs"
    until(lambda: any(runs.glob("*.identity")), within_s=20, saying=cluster.state)
    cluster.kill("agent")
    cluster.agent()
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.replicas()[0]["incarnation"] == 1
    cluster.one_engine()
    assert len(cluster.runners()) == 1


def test_an_agent_killed_before_its_runner_begins_leaves_one_engine(cluster: Cluster) -> None:
    cluster.serve()
    cluster.agent()
    cluster.wait_for_admin()
    cluster.make_key()
    cluster.apply(cluster.catalog())
    runs = cluster.folder / "agent" / "runs"
    until(lambda: any(runs.glob("*/launch.json")), within_s=20, saying=cluster.state)
    cluster.kill("agent")
    cluster.agent()
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    cluster.one_engine()
    assert len(cluster.runners()) == 1


def test_a_second_agent_on_the_same_state_says_so_and_exits(cluster: Cluster) -> None:
    cluster.up_to_ready()
    cluster.agent("second")
    status = cluster.processes.pop("second").wait(30)
    assert status not in {0, -9}
    assert "another llmgw agent" in cluster.log("second").lower()
    assert is_ready(cluster)
    cluster.one_engine()
