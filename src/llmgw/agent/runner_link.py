"""The agent's side of a runner's socket, for the event loop: watch its record, ask it things."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from llmgw.runner import socket as runner_socket
from llmgw.runner.record import BrokenFileError, Record

CONNECT_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 10.0


class RunnerAwayError(Exception):
    """No runner answers in this directory, or it went away."""


async def watch(folder: Path, idle_s_max: float) -> AsyncGenerator[Record, None]:
    """Yield the record now and at each transition, until the runner ends or nothing is new.

    Ends quietly when the runner closes or nothing came for `idle_s_max`; raises RunnerAwayError if
    no runner answers.
    """
    async with _connected(folder) as (reader, writer):
        writer.write(runner_socket.encode_request(runner_socket.Watch()))
        wait_s = ANSWER_S_MAX
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    line = await reader.readline()
            except TimeoutError:
                if wait_s == ANSWER_S_MAX:
                    raise RunnerAwayError(f"no answer within {ANSWER_S_MAX:g} s") from None
                return
            if not line:
                return
            yield _decoded(line)
            wait_s = idle_s_max


async def ask(folder: Path, request: runner_socket.Request, wait_s: float = 0.0) -> bytes:
    """Return the line that answers; raise RunnerAwayError if none comes in time."""
    async with _connected(folder) as (reader, writer):
        writer.write(runner_socket.encode_request(request))
        try:
            async with asyncio.timeout(ANSWER_S_MAX + wait_s):
                line = await reader.readline()
        except TimeoutError:
            raise RunnerAwayError(f"no answer within {ANSWER_S_MAX:g} s") from None
    if not line:
        raise RunnerAwayError("it closed the connection")
    return line


async def stop(folder: Path) -> Record:
    """Ask for the shard's end, with the grace of its launch; raise RunnerAwayError."""
    return _decoded(await ask(folder, runner_socket.Stop()))


def _decoded(line: bytes) -> Record:
    try:
        return runner_socket.decode_record(line)
    except (BrokenFileError, runner_socket.RefusedError) as error:
        raise RunnerAwayError(f"it answers with what is no record: {error}") from error


@asynccontextmanager
async def _connected(
    folder: Path,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        with runner_socket.open_directory(folder) as descriptor:
            async with asyncio.timeout(CONNECT_S_MAX):
                reader, writer = await asyncio.open_unix_connection(
                    runner_socket.socket_path(descriptor), limit=runner_socket.REPLY_BYTES_MAX
                )
    except (OSError, TimeoutError) as error:
        raise RunnerAwayError(f"no runner answers in {folder}: {error}") from error
    try:
        yield reader, writer
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise RunnerAwayError(f"the runner of {folder.name} went away: {error}") from error
    finally:
        writer.close()


async def answers(folder: Path) -> bool:
    """Return whether a runner answers in this directory."""
    try:
        async with _connected(folder):
            return True
    except RunnerAwayError:
        return False
