"""The agent's side of a runner's socket, for the event loop: watch its record, ask for its end."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from llmgw.runner import socket as runner_socket
from llmgw.runner.record import BrokenFileError, Record
from llmgw.runtime.threads import ThreadPool

CONNECT_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 10.0


class RunnerAwayError(Exception):
    """No runner answers in this directory, or it went away."""


class RunnerSilentError(RunnerAwayError):
    """A runner lives, for its socket takes connections, but it says nothing: it hangs."""


class RunnerDoor:
    """Talks to the runner of a directory."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    async def watch(self, folder: Path, idle_s_max: float) -> AsyncGenerator[Record, None]:
        """Yield the record now and at each transition, until the runner ends or nothing is new.

        Ends quietly when the runner closes or nothing came for `idle_s_max`; raises RunnerAwayError
        if no runner answers.
        """
        async with self._connected(folder) as (reader, writer):
            writer.write(runner_socket.encode_request(runner_socket.Watch()))
            yield await _answer(reader)
            while True:
                try:
                    async with asyncio.timeout(idle_s_max):
                        line = await reader.readline()
                except TimeoutError:
                    return
                if not line:
                    return
                yield _decoded(line)

    async def stop(self, folder: Path) -> Record:
        """Ask for the shard's end, with the grace of its launch; raise RunnerAwayError."""
        async with self._connected(folder) as (reader, writer):
            writer.write(runner_socket.encode_request(runner_socket.Stop()))
            return await _answer(reader)

    async def answers(self, folder: Path) -> bool:
        """Return whether a runner answers in this directory; that one listens is no answer."""
        try:
            async with self._connected(folder) as (reader, writer):
                writer.write(runner_socket.encode_request(runner_socket.Watch()))
                await _answer(reader)
                return True
        except RunnerAwayError:
            return False

    @asynccontextmanager
    async def _connected(
        self, folder: Path
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await self._connect(folder)
        except (OSError, TimeoutError) as error:
            raise RunnerAwayError(f"no runner answers in {folder}: {error}") from error
        try:
            yield reader, writer
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise RunnerAwayError(f"the runner of {folder.name} went away: {error}") from error
        finally:
            writer.close()

    async def _connect(self, folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = await self._pool.acquire(lambda: os.open(folder, flags), os.close)
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                return await asyncio.open_unix_connection(
                    runner_socket.socket_path(descriptor), limit=runner_socket.REPLY_BYTES_MAX
                )
        finally:
            os.close(descriptor)


async def _answer(reader: asyncio.StreamReader) -> Record:
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            line = await reader.readline()
    except TimeoutError:
        raise RunnerSilentError(f"its runner gave no answer within {ANSWER_S_MAX:g} s") from None
    if not line:
        raise RunnerAwayError("it closed the connection")
    return _decoded(line)


def _decoded(line: bytes) -> Record:
    try:
        return runner_socket.decode_record(line)
    except (BrokenFileError, runner_socket.RefusedError) as error:
        raise RunnerAwayError(f"it answers with what is no record: {error}") from error
