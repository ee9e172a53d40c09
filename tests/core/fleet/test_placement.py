from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet.catalog import EngineKind, Profile
from llmgw.core.fleet.hardware import PortRange
from llmgw.core.fleet.placement import (
    SPARE_PORTS,
    NoRoom,
    Placement,
    Request,
    Room,
    place,
    ports_from,
)
from llmgw.core.fleet.rooms import grant
from llmgw.core.ids import ReplicaId
from llmgw.testing.fleet import GPU_CLASS, inventory, profile


def request(wanted: Profile, replica: str = "r1", avoided: frozenset[int] = frozenset()) -> Request:
    return Request(ReplicaId(replica), 1, "m", ("m",), wanted, avoided)


def room(node: str = "n1", gpus: int = 2, **fields: object) -> Room:
    given_fields: dict[str, object] = {"shares": {}, **fields}
    return Room(inventory(node, gpus), **given_fields)  # type: ignore[arg-type]


def why_not(wanted: Profile, one: Room) -> str:
    answer = place(request(wanted), (one,))
    assert isinstance(answer, NoRoom)
    return answer.why


def test_a_profile_without_gpus_is_placed_on_a_node_without_gpus() -> None:
    answer = place(request(profile(gpus_per_node=0)), (room(gpus=0),))
    assert isinstance(answer, Placement)
    assert answer.head.gpus == ()


@pytest.mark.parametrize(
    ("wanted", "where", "words"),
    [
        (profile(), room(gpus=0), "0 of 1 GPUs free (it has no more)"),
        (profile(gpus_per_node=3), room(), "2 of 3 GPUs free"),
        (profile(gpu_class="h100-80g"), room(), f"is {GPU_CLASS}, not h100-80g"),
        (profile(), room(closed="it has not been heard for 9 s"), "not been heard for 9 s"),
        (profile(node_labels={"rack": "7"}), room(), "lacks the labels"),
        (replace(profile(), engine=EngineKind.VLLM), room(), "has no vllm"),
        (
            profile(),
            room(ports_used=frozenset(range(18100, 18200))),
            "free ports in a row from 18100 to 18199",
        ),
        (
            profile(memory_share=0.6),
            room(gpus=1, shares={"GPU-n1-0": 0.5}),
            "GPU 0 has 50% left",
        ),
    ],
)
def test_a_no_says_what_is_in_the_way_on_each_node(
    wanted: Profile, where: Room, words: str
) -> None:
    why = why_not(wanted, where)
    assert "n1" in why
    assert words in why


def test_without_any_node_the_remedy_is_named() -> None:
    answer = place(request(profile()), ())
    assert isinstance(answer, NoRoom)
    assert "start llmgw agent" in answer.why


def test_a_gpu_that_must_not_be_used_is_passed_over() -> None:
    there = inventory(gpus=2)
    bad = replace(there.gpus[0], unusable="is quarantined: 9 GiB are not back")
    answer = place(request(profile()), (Room(replace(there, gpus=(bad, there.gpus[1])), {}),))
    assert isinstance(answer, Placement)
    assert answer.head.gpus == ("GPU-n1-1",)


def test_a_shared_gpu_fills_up_before_a_fresh_one_is_opened() -> None:
    answer = place(request(profile(memory_share=0.5)), (room(shares={"GPU-n1-1": 0.5}),))
    assert isinstance(answer, Placement)
    assert answer.head.gpus == ("GPU-n1-1",)


@given(
    st.lists(st.sampled_from([0.25, 0.5, 0.7, 1.0]), max_size=24),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_however_many_are_placed_no_gpu_and_no_port_is_given_out_twice(
    shares: list[float], gpus: int, nodes: int
) -> None:
    left = {
        f"n{i}": Room(replace(inventory(f"n{i}", gpus), ports=PortRange(100, 139)), {})
        for i in range(nodes)
    }
    used: Counter[str] = Counter()
    ports: list[tuple[str, int]] = []
    for number, share in enumerate(shares):
        wanted = profile(memory_share=share)
        answer = place(request(wanted, f"r{number}"), tuple(left.values()))
        if isinstance(answer, Placement):
            grant(left, answer)  # type: ignore[arg-type]
            used.update({gpu: round(share * 100) for gpu in answer.head.gpus})
            ports += [(answer.head.node, port) for port in ports_from(answer.head.port)]
        else:
            assert len(answer.in_the_way) == nodes
    assert all(share <= 100 for share in used.values())
    assert len(set(ports)) == len(ports)
    assert all(100 <= port <= 139 for _, port in ports)
    assert len(ports) % (1 + SPARE_PORTS) == 0
