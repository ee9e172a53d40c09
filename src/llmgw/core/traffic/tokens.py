"""What an engine says was consumed, read from its answers, and the guess where it says nothing."""

from dataclasses import dataclass
from typing import Final

import msgspec

from llmgw.core.traffic.sse import fields_of

BYTES_PER_TOKEN: Final = 4
WHOLE_ANSWER_BYTES_MAX: Final = 64 * 1024
"""Larger answers (embeddings) are not read whole; their usage is looked for near their end."""
TAIL_BYTES: Final = 8 * 1024
COUNT_MAX: Final = 2**32
"""What no request reaches; the ledger can still add up two thousand million of them."""
_USAGE: Final = b'"usage"'


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one request."""

    prompt: int
    completion: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a streamed event was found to carry."""

    tokens: Tokens | None = None
    alone: bool = False
    """It carries usage and no choices: it is there only because somebody asked for usage."""
    error: str | None = None
    """The error's message."""
    blames_request: bool = False
    """The error is about the request (a status from 400 to 499), not the engine's failure."""


_Count = int | float | None
"""JSON knows no integers: some engines write 9.0."""


class _Details(msgspec.Struct):
    cached_tokens: _Count = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str | None = None
    code: int | str | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[msgspec.Raw] | None = None
    error: _Error | str | None = None


_NOTHING: Final = Sighting()


def estimate(byte_count: int) -> int:
    """Guess the tokens in that many bytes of text."""
    return -(-byte_count // BYTES_PER_TOKEN)


def look_at(event: bytes) -> Sighting:
    """Read a streamed event properly; what cannot be read carries nothing."""
    name, data = fields_of(event)
    if name == "error":
        return _error_of(_decoded(data), data)
    answer = _decoded(data)
    if answer is None:
        return _NOTHING
    if answer.error is not None:
        return _error_of(answer, data)
    if answer.usage is None:
        return _NOTHING
    return Sighting(tokens=_tokens(answer.usage), alone=answer.choices == [])


def tokens_in(answer: bytes) -> Tokens | None:
    """Find the usage of an answer that was not streamed, or of its last TAIL_BYTES."""
    read = _decoded(answer) if len(answer) <= WHOLE_ANSWER_BYTES_MAX else None
    if read is not None:
        return _tokens(read.usage) if read.usage is not None else None
    start = answer.find(b"{", answer.rfind(_USAGE) + len(_USAGE))
    if start < 0 or _USAGE not in answer:
        return None
    try:
        return _tokens(msgspec.json.decode(_object_at(answer, start), type=_Usage))
    except (msgspec.MsgspecError, ValueError):
        return None


def _object_at(text: bytes, start: int) -> bytes:
    """Return the JSON object that begins at `start`; usage objects hold numbers, no strings."""
    end = start
    depth = 0
    while end >= 0:
        opens, closes = text.find(b"{", end), text.find(b"}", end)
        if closes < 0:
            break
        if 0 <= opens < closes:
            depth, end = depth + 1, opens + 1
        else:
            depth, end = depth - 1, closes + 1
        if depth == 0:
            return text[start:end]
    return b""


def _decoded(text: str | bytes) -> _Answer | None:
    try:
        return msgspec.json.decode(text, type=_Answer)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _tokens(usage: _Usage) -> Tokens:
    details = usage.prompt_tokens_details
    return Tokens(
        prompt=_whole(usage.prompt_tokens),
        completion=_whole(usage.completion_tokens),
        cached=_whole(details.cached_tokens if details else 0),
    )


def _whole(count: _Count) -> int:
    return int(max(0, min(count or 0, COUNT_MAX)))


def _error_of(answer: _Answer | None, data: str) -> Sighting:
    error = answer.error if answer is not None else None
    if isinstance(error, _Error):
        blames_request = str(error.code).startswith("4") and len(str(error.code)) == 3
        return Sighting(error=error.message or data, blames_request=blames_request)
    return Sighting(error=error if isinstance(error, str) else data)
