"""Nodes that are away while things change."""

import signal

import pytest

from llmgw.testing.waiting import until
from tests.e2e.cluster import READY_S, Cluster
from tests.e2e.test_kills import LONG, is_ready

pytestmark = pytest.mark.e2e


def test_a_control_plane_that_starts_while_an_agent_is_cut_off_keeps_its_routes(
    cluster: Cluster,
) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    cluster.kill("agent", sig=signal.SIGSTOP)
    cluster.kill("serve")
    cluster.serve(settle_s=2)
    cluster.wait_for_answer(within_s=15)
    stream = cluster.stream(LONG)
    until(lambda: phases(cluster) == ["silent"], within_s=15, saying=cluster.state)
    stream.finish()
    assert cluster.ask().status_code == 200
    cluster.kill("agent", sig=signal.SIGCONT)
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.one_engine() == engine
    assert cluster.replicas()[0]["incarnation"] == 1


def phases(cluster: Cluster) -> list[str]:
    """Return the phases of all replicas."""
    return [str(replica["phase"]) for replica in cluster.replicas()]


def test_a_model_that_leaves_the_catalog_while_its_agent_is_away_is_stopped_when_it_returns(
    cluster: Cluster,
) -> None:
    cluster.up_to_ready()
    engine = cluster.one_engine()
    cluster.kill("agent")
    cluster.apply(cluster.catalog(replicas=-1))
    until(lambda: phases(cluster) == ["stopping"], within_s=20, saying=cluster.state)
    assert cluster.one_engine() == engine
    cluster.agent()
    until(
        lambda: not cluster.engines() and not cluster.runners(), within_s=20, saying=cluster.state
    )
    until(lambda: cluster.replicas() == [], within_s=10, saying=cluster.state)


def test_without_a_store_what_runs_is_adopted_and_nothing_starts(cluster: Cluster) -> None:
    cluster.storeless()
    cluster.wait_for_answer()
    engine = cluster.one_engine()
    cluster.kill("serve", "agent")
    cluster.storeless()
    cluster.wait_for_answer()
    until(lambda: is_ready(cluster), within_s=READY_S, saying=cluster.state)
    assert cluster.one_engine() == engine
    assert cluster.replicas()[0]["incarnation"] == 1
