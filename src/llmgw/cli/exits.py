"""What a command's end means: exit codes for scripts, one sentence for people.

docs/reference/cli.md explains the codes; they never change their meaning.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from llmgw.core.errors import InvalidRequestError, LlmgwError
from llmgw.runtime.files import LockHeldError
from llmgw.runtime.log import blank_secrets


class Exit(IntEnum):
    """An exit code."""

    DONE = 0
    FAILED = 1
    """It was tried, and failed or was refused."""
    USAGE = 2
    """What was typed, or written in a file, cannot be used; nothing was tried."""
    UNREACHABLE = 3
    """The control plane does not answer."""
    LATE = 4
    """A deadline passed; what was asked for may still happen."""
    RUNNING = 5
    """It runs already: another process has the same state directory."""
    INTERRUPTED = 130


class DeadlinePassedError(LlmgwError):
    """What was waited for did not happen in time; it may still."""

    code = "deadline_passed"


_BY_CODE: Final[Mapping[str, Exit]] = {
    "deadline_passed": Exit.LATE,
    "another_agent": Exit.RUNNING,
    "already_running": Exit.RUNNING,
    "admin_unreachable": Exit.UNREACHABLE,
}
"""By the errors' own codes: their classes live in modules that most commands need not load."""


def exit_of(error: BaseException) -> Exit | None:
    """Return the exit code for an error that was foreseen; None for a fault of our own."""
    match error:
        case BaseExceptionGroup():
            return exit_of(next(_leaves(error)))
        case LlmgwError(code=code) if code in _BY_CODE:
            return _BY_CODE[code]
        case InvalidRequestError():
            return Exit.USAGE
        case LockHeldError():
            return Exit.RUNNING
        case LlmgwError() | OSError():
            return Exit.FAILED
        case _:
            return None


def sentences(error: BaseException) -> str:
    """Return what happened, for a person; a group says each thing once."""
    leaves = _leaves(error) if isinstance(error, BaseExceptionGroup) else iter((error,))
    said = dict.fromkeys(_sentence(leaf) for leaf in leaves)
    return blank_secrets("\n".join(said))


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
