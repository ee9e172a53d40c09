"""Errors on their way through the admin API: one table of statuses, one of codes."""

from collections.abc import Mapping
from typing import Final

from llmgw.core.errors import (
    BusyError,
    ConflictError,
    DependencyError,
    InvalidRequestError,
    LlmgwError,
    NoCapacityError,
    NodeUnreachableError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    QuotaExhaustedError,
    StorageError,
    UpstreamFailedError,
    UserError,
)
from llmgw.core.fleet.catalog import Problem

STATUSES: Final[Mapping[type[LlmgwError], int]] = {
    InvalidRequestError: 400,
    NotAuthenticatedError: 401,
    NotAllowedError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    UserError: 400,
    BusyError: 429,
    UpstreamFailedError: 502,
    NodeUnreachableError: 502,
    StorageError: 503,
    DependencyError: 503,
    LlmgwError: 500,
}
"""By the nearest class of the tree."""

RETRY_AFTER_S: Final = 1.0


class AdminUnreachableError(DependencyError):
    """The admin API does not answer."""

    code = "admin_unreachable"


class NotLeadingError(DependencyError):
    """Only the leader can do that, and this control plane stands by."""

    code = "not_leading"


class StartingError(DependencyError):
    """The control plane has just started, or cannot read its store."""

    code = "starting"


class InvalidCatalogError(InvalidRequestError):
    """A catalog, or another body, that cannot be taken; `problems` says all that is wrong."""

    code = "invalid_catalog"

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


_PLAIN: Final[tuple[type[LlmgwError], ...]] = (
    NotAuthenticatedError,
    NotAllowedError,
    NotFoundError,
    ConflictError,
    UpstreamFailedError,
    NodeUnreachableError,
    StorageError,
    NotLeadingError,
    StartingError,
    InvalidRequestError,
)
_BUSY: Final[tuple[type[BusyError], ...]] = (NoCapacityError, QuotaExhaustedError)


def status_of(error: LlmgwError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def error_of(code: str, message: str, problems: tuple[Problem, ...], status: int) -> LlmgwError:
    """Return the error that an answer of the admin API stands for."""
    if problems or code == InvalidCatalogError.code:
        return InvalidCatalogError(message, problems)
    for kind in _PLAIN:
        if kind.code == code:
            return kind(message)
    for busy in _BUSY:
        if busy.code == code:
            return busy(message, RETRY_AFTER_S)
    return InvalidRequestError(message) if status < 500 else DependencyError(message)
