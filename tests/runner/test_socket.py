"""The runner's socket: several clients, none of which can stall it."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from llmgw.runner.record import Phase
from llmgw.runner.socket import (
    FOLLOW_S_MAX,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    BrokenFileError,
    Client,
    Follow,
    RefusedError,
    Request,
    Status,
    Stop,
    Tail,
    Watch,
    decode_logs,
    decode_record,
    decode_request,
    decode_status,
    encode_request,
    socket_path,
)
from tests.runner.world import World, sh, wait

SLEEPS = "while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    "request_", [Status(), Watch(), Stop(), Stop(1.5), Tail(7, 99), Follow("1:0", 99, 2.0)]
)
def test_a_request_comes_back_as_it_was_sent(request_: Request) -> None:
    assert decode_request(encode_request(request_).rstrip(b"\n")) == request_


def test_numbers_in_requests_are_cut_to_their_bounds() -> None:
    wild = decode_request(b'{"ask": "follow", "cursor": "1:0", "wait_s": 1e9, "bytes_max": -5}')
    assert wild == Follow("1:0", 0, FOLLOW_S_MAX)
    assert decode_request(b'{"ask": "stop", "grace_s": -1, "new": 1}') == Stop(0.0)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"7", b'{"ask": 1}', b'{"ask": "dance"}', b"\xff\x00", b"[" * 9000]
)
def test_what_is_no_request_is_said_to_be_none(line: bytes) -> None:
    with pytest.raises(BrokenFileError):
        decode_request(line)


def test_garbage_is_refused_and_the_connection_closed(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    for garbage in (b"\x00\xff\n", b"{}\n", b"x" * (REQUEST_BYTES_MAX + 1), b'{"ask": "x"}\n'):
        with shard.client() as client:
            client.send(garbage)
            with pytest.raises(RefusedError):
                decode_record(client.receive())
            with contextlib.suppress(ConnectionResetError), pytest.raises(EOFError):
                client.receive()
    with shard.client() as client, pytest.raises(RefusedError, match="no place 'x'"):
        client.follow("x")
    assert shard.status().record.phase is Phase.RUNNING
    shard.stop()


def test_clients_that_say_nothing_or_half_a_line_do_not_keep_others_out(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    with contextlib.ExitStack() as stack:
        for number in range(20):
            client = stack.enter_context(Client(shard.directory))
            client.send(b'{"ask": "sta' if number % 2 else b"")
        began_s = time.monotonic()
        assert shard.status().record.phase is Phase.RUNNING
        assert time.monotonic() - began_s < 4.0
        began_s = time.monotonic()
        os.kill(shard.pid("engine"), 9)
        shard.until(Phase.ENDED)
        assert time.monotonic() - began_s < 4.0
    shard.runner.wait(5)


def test_a_watcher_that_does_not_read_stalls_nobody(world: World) -> None:
    shard = world.shard().start(sh("engine", f"seq 1 30000; {SLEEPS}"))
    wait(lambda: " 30000\n" in shard.log())
    with shard.client() as deaf, shard.client() as client:
        deaf.send(encode_request(Tail()) * 40)
        assert client.status().record.phase is Phase.RUNNING
        assert len(client.tail(10).lines) == 10
    shard.stop()


def test_a_hundred_clients_at_once_are_all_answered(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    answers: list[Phase] = []

    def ask() -> None:
        with Client(shard.directory, timeout_s=8.0) as client:
            answers.append(client.status().record.phase)

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == [Phase.RUNNING] * 100
    shard.stop()


def test_the_number_of_those_who_wait_is_bounded_and_said(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    with contextlib.ExitStack() as stack:
        refused = 0
        for _ in range(7):
            client = stack.enter_context(shard.client())
            try:
                decode_record(client.ask(Watch()))
            except RefusedError:
                refused += 1
        assert refused == 2
        assert shard.status().record.phase is Phase.RUNNING
    shard.stop()


def test_watchers_are_told_each_transition_and_the_end(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    with shard.client() as watcher:
        changes = watcher.watch()
        first = next(changes)
        with shard.client() as client:
            client.stop()
        phases = [first.phase, *(record.phase for record in changes)]
    assert phases[0] is Phase.RUNNING
    assert phases[-1] is Phase.ENDED
    assert phases == sorted(phases, key=list(Phase).index)
    assert shard.runner.wait(5) == 0
    assert not (shard.directory / "sock").exists()


def test_a_follower_waits_for_the_next_line_and_gets_it(world: World) -> None:
    go = world.root / "go"
    shard = world.shard().start(
        sh("engine", f"echo first; while [ ! -e {go} ]; do sleep 0.02; done; echo next; {SLEEPS}")
    )
    wait(lambda: "first" in shard.log())
    with shard.client() as client:
        cursor = client.tail().cursor
        assert client.follow(cursor).lines == ()
        client.send(encode_request(Follow(cursor, wait_s=20.0)))
        go.touch()
        assert decode_logs(client.receive()).lines[0].endswith(" engine| next")
    shard.stop()


async def test_an_agent_reaches_a_runner_from_its_event_loop(world: World) -> None:
    # Deeper than the 107 bytes that a unix socket's path may have.
    deep = world.shard("/".join(["d" * 40] * 4) + "/r7k2m9x4qd.1.0")
    await asyncio.to_thread(deep.start, sh("engine", f"seq 1 20000; {SLEEPS}"))
    await asyncio.to_thread(wait, lambda: " 20000\n" in deep.log())
    descriptor = await asyncio.to_thread(os.open, deep.directory, os.O_PATH)
    try:
        path = socket_path(descriptor)
        reader, writer = await asyncio.open_unix_connection(path, limit=REPLY_BYTES_MAX)
    finally:
        os.close(descriptor)
    writer.write(encode_request(Status()) + encode_request(Tail(100_000)))
    status = decode_status(await asyncio.wait_for(reader.readline(), 5))
    assert status.record.phase is Phase.RUNNING
    assert status.memory.processes >= 1
    assert len(decode_logs(await asyncio.wait_for(reader.readline(), 5)).lines) > 1000
    writer.close()
    await writer.wait_closed()
    await asyncio.to_thread(deep.stop)


def test_a_stale_socket_of_a_killed_runner_is_replaced(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    shard.kill_runner()
    assert (shard.directory / "sock").exists()
    with pytest.raises(ConnectionRefusedError):
        Client(shard.directory)
    shard.spawn()
    shard.stop()


def test_a_client_that_closes_its_half_still_gets_its_answer(world: World) -> None:
    shard = world.shard().start(sh("engine", SLEEPS))
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        descriptor = os.open(shard.directory, os.O_PATH)
        raw.connect(socket_path(descriptor))
        os.close(descriptor)
        raw.sendall(encode_request(Status()))
        raw.shutdown(socket.SHUT_WR)
        received = b""
        while data := raw.recv(65536):
            received += data
    assert decode_status(received.rstrip(b"\n")).record.phase is Phase.RUNNING
    assert Path(shard.directory).exists()
    shard.stop()
