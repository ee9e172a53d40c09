"""One HTTP client for all engines of a node: bounded answers, the engine's key, no proxies.

aiohttp's, since the agent serves its metrics by aiohttp anyway: httpx beside it cost 10 MB and
twice the CPU (ADR 0006).
"""

from dataclasses import dataclass, field
from typing import Final

import aiohttp
from yarl import URL

ANSWER_S_MAX: Final = 8.0
"""SGLang's health path generates a token and takes over a second."""
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
CONNECTIONS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine answers, and the key that it demands."""

    address: str
    port: int
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an engine answered."""

    status: int
    body: bytes


class NoReplyError(Exception):
    """The engine did not answer; the message says how."""


class EngineHttp:
    """Asks engines; reuses connections."""

    def __init__(self) -> None:
        """Needs a running event loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=60.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
            trust_env=False,
        )

    async def get(self, engine: Endpoint, path: str) -> Reply:
        """GET a path; raise NoReplyError."""
        return await self._ask("GET", engine, path, None)

    async def post(self, engine: Endpoint, path: str, body: dict[str, object]) -> Reply:
        """POST a JSON object; raise NoReplyError."""
        return await self._ask("POST", engine, path, body)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _ask(
        self, method: str, engine: Endpoint, path: str, body: dict[str, object] | None
    ) -> Reply:
        url = URL.build(scheme="http", host=engine.address, port=engine.port, path=path)
        headers = {"Authorization": f"Bearer {engine.key}"} if engine.key else {}
        try:
            async with self._session.request(
                method, url, headers=headers, json=body, allow_redirects=False
            ) as answer:
                return Reply(answer.status, await _bounded(answer))
        except TimeoutError as error:
            raise NoReplyError(f"it did not answer within {ANSWER_S_MAX:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoReplyError(str(error) or type(error).__name__) from error


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    body = b""
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            raise NoReplyError(f"its answer has over {ANSWER_BYTES_MAX} bytes")
    return body
