import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet.hardware import Inventory, RdmaPort, gpu_class, islands
from llmgw.core.ids import NodeId


@pytest.mark.parametrize(
    ("name", "memory_mib", "expected"),
    [
        ("NVIDIA L40S", 46068, "l40s-45g"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80g"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl-94g"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-sxm4-40g"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96g"),
        ("NVIDIA GH200 144G HBM3e", 146831, "gh200-143g"),
        ("Tesla T4", 15360, "t4-15g"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24g"),
        ("NVIDIA H200", None, "h200-unknown"),
        ("", 1024, "gpu-1g"),
        ("NVIDIA L4", 512, "l4-1g"),
        ("NVIDIA L4", 511, "l4-0g"),
    ],
)
def test_a_class_is_the_model_and_the_drivers_gib_rounded_half_up(
    name: str, memory_mib: int | None, expected: str
) -> None:
    assert gpu_class(name, memory_mib) == expected


@given(st.text(max_size=40), st.none() | st.integers(0, 2**30))
def test_a_class_is_one_lower_case_word_whatever_a_driver_says(
    name: str, memory_mib: int | None
) -> None:
    found = gpu_class(name, memory_mib)
    assert found == found.lower()
    assert " " not in found
    assert found.endswith(("g", "-unknown"))


def node(name: str, *subnets: str | None, active: bool = True, label: str = "") -> Inventory:
    ports = [RdmaPort(f"mlx5_{i}", 1, active, "Ethernet", subnet=s) for i, s in enumerate(subnets)]
    labels = {"island": label} if label else {}
    return Inventory(
        NodeId(name), name, "10.0.0.1", "m", "b", rdma_ports=tuple(ports), labels=labels
    )


def groups(*nodes: Inventory) -> list[tuple[str, ...]]:
    return sorted(tuple(island.nodes) for island in islands(nodes))


def test_nodes_whose_rails_reach_the_same_subnets_are_one_island() -> None:
    assert groups(node("a", "r1", "r2"), node("b", "r2", "r1"), node("c", "r3")) == [
        ("a", "b"),
        ("c",),
    ]


def test_a_node_without_a_fabric_is_an_island_of_itself() -> None:
    quiet = node("b", "r1", active=False)
    assert groups(node("a"), quiet, node("c", None), node("d", "r1")) == [
        ("a",), ("b",), ("c",), ("d",),
    ]  # fmt: skip


def test_the_operators_label_wins() -> None:
    assert groups(node("a", "r1", label="x"), node("b", label="x"), node("c", "r1")) == [
        ("a", "b"),
        ("c",),
    ]


def test_the_order_in_which_nodes_come_changes_nothing() -> None:
    nodes = (node("a", "r1"), node("b", "r1"), node("c"), node("d", label="x"))
    assert len({islands(order) for order in itertools.permutations(nodes)}) == 1
