"""Tests of llmgw.runtime.sd_notify."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.runtime.sd_notify import SystemdNotifier, Watchdog
from llmgw.testing.clock import ManualClock
from llmgw.testing.waiting import eventually


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The end that systemd reads."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end:
        end.bind(str(tmp_path / "notify"))
        yield end


def test_systemd_hears_ready_status_and_stopping(systemd: socket.socket) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": systemd.getsockname()})
    notifier.ready("3 shards\nattached")
    notifier.status("draining")
    notifier.stopping()
    heard = [systemd.recv(4096) for _ in range(3)]
    assert heard == [b"READY=1\nSTATUS=3 shards attached", b"STATUS=draining", b"STOPPING=1"]


def test_an_abstract_address_is_understood() -> None:
    name = "llmgw-test-" + str(id(object()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind("\0" + name)
        SystemdNotifier({"NOTIFY_SOCKET": "@" + name}).stopping()
        assert end.recv(100) == b"STOPPING=1"


def test_without_systemd_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    notifier = SystemdNotifier({})
    notifier.ready("up")
    assert notifier.watchdog_s is None
    assert not caplog.records


def test_a_socket_that_went_away_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    notifier.ready("up")
    notifier.stopping()
    assert len(caplog.records) == 1


def test_that_nobody_listens_any_more_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).stopping()
    assert [r for r in caplog.records if r.levelname != "DEBUG"] == []


async def test_the_watchdog_is_fed_twice_within_its_time(systemd: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "30000000"}
    clock = ManualClock()
    async with asyncio.TaskGroup() as group:
        watchdog = Watchdog(SystemdNotifier(environment), clock)
        task = group.create_task(watchdog.run())
        await eventually(lambda: clock.sleepers == 1)
        assert systemd.recv(100) == b"WATCHDOG=1"
        clock.advance(14.9)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
        clock.advance(0.1)
        await eventually(lambda: clock.sleepers == 1 and clock.monotonic_s() == 1015.0)
        await asyncio.sleep(0)
        assert systemd.recv(100) == b"WATCHDOG=1"
        task.cancel()
