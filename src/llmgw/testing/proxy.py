"""A TCP proxy that fails as networks do: cuts, stalls without closing, delays, refuses."""

import asyncio
from types import TracebackType
from typing import Final, Self

CHUNK_BYTES: Final = 64 * 1024


class Proxy:
    """Forwards 127.0.0.1:`port` to 127.0.0.1:`target` and misbehaves when told to."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay_s = 0.0
        """Added to each chunk that passes."""
        self.accepted = 0
        """Connections so far."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[object] | None] = {}

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._open)

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Sever every connection with a reset, both ways."""
        for task in self._open.values():
            if task is not None:
                task.cancel()

    def stall(self) -> None:
        """Forward nothing more and close nothing: what a pulled cable looks like."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, what was held back first; accept again."""
        self._flowing.set()
        self._refusing = False

    def refuse(self) -> None:
        """Reset every new connection at once."""
        self._refusing = True

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [task for task in self._open.values() if task is not None]
        self.cut()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        self._open[writer] = asyncio.current_task()
        away: asyncio.StreamWriter | None = None
        try:
            back, away = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, away))
                group.create_task(self._pump(back, writer))
        except* (OSError, _ClosedError):
            pass
        except* asyncio.CancelledError:
            pass  # cut; nobody waits for this task
        finally:
            del self._open[writer]
            for end in (writer, away):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._flowing.wait()
            chunk = await reader.read(CHUNK_BYTES)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._flowing.wait()
            if not chunk:
                raise _ClosedError
            writer.write(chunk)
            await writer.drain()


class _ClosedError(Exception):
    """One side has closed its connection, so the other is closed, too."""
