"""RDMA ports from made-up sysfs trees, in the spellings that real ones have."""

from pathlib import Path

from llmgw.agent.discovery.sysfs import read_rdma_ports
from llmgw.testing.hardware import rdma_tree


def test_an_infiniband_port_tells_its_rate_and_its_subnet(tmp_path: Path) -> None:
    port = "mlx5_0/ports/1"
    sys = rdma_tree(
        tmp_path,
        [
            (f"{port}/state", "4: ACTIVE\n"),
            (f"{port}/rate", "400 Gb/sec (4X NDR)\n"),
            (f"{port}/link_layer", "InfiniBand\n\n"),
            (f"{port}/gids/0", "fec0:0000:0000:0012:ba59:9fff:fed4:fb6a\n"),
            ("mlx5_0/device/numa_node", "1\n"),
        ],
    )
    (found,) = read_rdma_ports(sys)
    assert (found.device, found.port, found.active, found.rate_gbps) == ("mlx5_0", 1, True, 400.0)
    assert (found.link_layer, found.subnet, found.numa_node) == (
        "InfiniBand",
        "fec0:0000:0000:0012",
        1,
    )


def test_the_default_subnet_that_every_fabric_has_proves_nothing(tmp_path: Path) -> None:
    port = "mlx5_0/ports/1"
    gid = "fe80:0000:0000:0000:ba59:9fff:fed4:fb6a\n"
    sys = rdma_tree(tmp_path, [(f"{port}/link_layer", "InfiniBand\n"), (f"{port}/gids/0", gid)])
    (found,) = read_rdma_ports(sys)
    assert found.subnet is None


def test_a_roce_port_names_its_interface_and_claims_no_subnet(tmp_path: Path) -> None:
    port = "rocep1s0f0/ports/1"
    sys = rdma_tree(
        tmp_path,
        [
            (f"{port}/state", "1: DOWN\n"),
            (f"{port}/rate", "2.5 Gb/sec (1X)\n"),
            (f"{port}/link_layer", "Ethernet\n"),
            (f"{port}/gid_attrs/ndevs/3", "bond0\n"),
            (f"{port}/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
        ],
    )
    (found,) = read_rdma_ports(sys)
    assert (found.active, found.rate_gbps, found.netdev) == (False, 2.5, "bond0")
    assert found.subnet is None


def test_odd_files_hide_only_their_own_field(tmp_path: Path) -> None:
    sys = rdma_tree(tmp_path, [("hfi1_0/ports/1/state", "ACTIVE\n"), ("hfi1_0/ports/x/a", "")])
    (tmp_path / "class/infiniband/hfi1_0/ports/1/rate").mkdir()
    (found,) = read_rdma_ports(sys)
    assert (found.active, found.rate_gbps, found.link_layer) == (False, None, "Unknown")


def test_a_machine_without_rdma_has_no_ports(tmp_path: Path) -> None:
    assert read_rdma_ports(tmp_path) == ()
