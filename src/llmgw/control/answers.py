"""Bodies and answers of the admin API: bounded JSON in, JSON out, errors as the one table says."""

import asyncio
import math
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from aiohttp import web

from llmgw.admin.errors import status_of
from llmgw.admin.schema import ErrorBody, ErrorInfo
from llmgw.config.shape import InvalidShapeError, Shape
from llmgw.config.written import parse_json
from llmgw.core.errors import BusyError, InvalidRequestError, LlmgwError

if TYPE_CHECKING:
    from llmgw.core.fleet.catalog import Problem

_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}

PAGE: Final = "docs/reference/admin-api.md"

T = TypeVar("T")
N = TypeVar("N", int, float)


def answer(value: object, status: int = 200) -> web.Response:
    """Return a value of the schema as JSON."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def line(value: object) -> bytes:
    """Return a value as one line of a stream."""
    return msgspec.json.encode(value) + b"\n"


def error_answer(error: LlmgwError) -> web.Response:
    """Return what a refusal or failure says."""
    problems: tuple[Problem, ...] = getattr(error, "problems", ())
    told = answer(ErrorBody(ErrorInfo(error.code, str(error), problems)), status_of(error))
    if isinstance(error, BusyError):
        told.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return told


def http_error_answer(request: web.Request, error: web.HTTPException) -> web.Response:
    """Return what aiohttp itself refuses, in the same form."""
    code = _CODES.get(error.status, "invalid_request")
    message = f"{request.method} {request.path}: {error.reason}"
    return answer(ErrorBody(ErrorInfo(code, message)), error.status)


def number(request: web.Request, name: str, kind: type[N]) -> N | None:
    """Return a number of the query; None where it is absent."""
    text = request.query.get(name, "")
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        raise InvalidRequestError(f"{name}: {text[:40]!r} is no number; write one") from None
    if not math.isfinite(value) or abs(value) > 2**53:
        raise InvalidRequestError(f"{name}: {text[:40]!r} is out of bounds; write a smaller one")
    return value


def flag(request: web.Request, name: str) -> bool:
    """Return whether the query asks for something."""
    return request.query.get(name, "0") not in {"", "0", "false"}


async def text_of(request: web.Request) -> str:
    """Return a body; aiohttp refuses what is too large."""
    try:
        return await request.text()
    except UnicodeDecodeError:
        raise InvalidRequestError("the body is not UTF-8 text; send JSON") from None


async def read(kind: type[T], text: str) -> T:
    """Read a body into a type of the schema; raise an error that names all that is wrong."""
    data = parse_json(text, "the body").data
    try:
        # In a thread: what pydantic makes of our types reads files the first time.
        return (await asyncio.to_thread(Shape, kind, PAGE)).read(data)
    except InvalidShapeError as error:
        raise InvalidRequestError(f"the body cannot be used: {error}") from None


async def set_within(event: asyncio.Event, s_max: float) -> None:
    """Wait for an event, or so long."""
    try:
        async with asyncio.timeout(s_max):
            await event.wait()
    except TimeoutError:
        pass
