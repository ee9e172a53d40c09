"""Errors as HTTP answers: the only table from error class to status, and OpenAI's shape of both."""

import math
from http import HTTPStatus
from typing import Final

import msgspec

from llmgw.core.errors import (
    BugError,
    BusyError,
    ConflictError,
    DependencyError,
    LlmgwError,
    NoCapacityError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    StorageError,
    UserError,
)
from llmgw.core.traffic.call import BodyTooLargeError, MalformedCallError
from llmgw.gateway.failures import NotReadyError, SilentError


class UnknownModelError(NotFoundError):
    """There is no such model, or not for this key; which of the two is not said."""

    code = "model_not_found"


class UnknownPathError(NotFoundError):
    """The gateway has nothing under this path."""

    code = "unknown_url"


class WrongMethodError(UserError):
    """The path is right and the method is not."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTooSlowError(UserError):
    """The client did not send the whole body in time."""

    code = "request_timeout"


_STATUS: Final[dict[type[LlmgwError], int]] = {
    UserError: 400,
    NotAuthenticatedError: 401,
    NotAllowedError: 403,
    NotFoundError: 404,
    WrongMethodError: 405,
    BodyTooSlowError: 408,
    ConflictError: 409,
    BodyTooLargeError: 413,
    BusyError: 429,
    BugError: 500,
    DependencyError: 502,
    NoCapacityError: 503,
    NotReadyError: 503,
    SilentError: 504,
    StorageError: 503,
}
# Types as OpenAI's own clients know them, by status.
_TYPES: Final = {429: "rate_limit_error"}
_USER_TYPE: Final = "invalid_request_error"
_SERVER_TYPE: Final = "server_error"
_UNSAID: Final = "the gateway failed; its log says how"

RETRY_SOON: Final = b"Retry-After: 2\r\n"
JSON_HEADER: Final = b"Content-Type: application/json\r\n"
_STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}


def status_of(error: LlmgwError) -> int:
    """Return the status of the nearest class in the tree."""
    return next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), 500)


def status_line(status: int) -> bytes:
    """Return the first line of an answer."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def error_body(error: LlmgwError | None) -> bytes:
    """Return OpenAI's error object; None for a failure that nobody foresaw."""
    if error is None:
        return _error_object(_UNSAID, 500, "internal", None)
    param = error.param if isinstance(error, MalformedCallError) else None
    if isinstance(error, UnknownModelError):
        param = "model"
    return _error_object(str(error), status_of(error), error.code, param)


def error_event(error: LlmgwError) -> bytes:
    """Return the error as an event of a stream."""
    return b"data: " + error_body(error) + b"\n\n"


def wrapped_error(status: int, text: str) -> bytes:
    """Return OpenAI's error object for an engine's refusal that is not in that shape."""
    return _error_object(text, status, "upstream_refused", None)


def error_headers(error: LlmgwError | None) -> bytes:
    """Return the header lines that the error asks for."""
    if isinstance(error, BusyError):
        return b"Retry-After: %d\r\n" % max(1, math.ceil(error.retry_after_s))
    if isinstance(error, StorageError):
        return b"Retry-After: 30\r\n"
    if isinstance(error, NotReadyError):
        return RETRY_SOON
    if isinstance(error, NotAuthenticatedError):
        return b"WWW-Authenticate: Bearer\r\n"
    if isinstance(error, WrongMethodError):
        return b"Allow: " + error.allow.encode() + b"\r\n"
    return b""


def _error_object(message: str, status: int, code: str, param: str | None) -> bytes:
    kind = _TYPES.get(status) or (_USER_TYPE if status < 500 else _SERVER_TYPE)
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})
