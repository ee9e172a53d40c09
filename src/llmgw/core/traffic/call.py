"""A request's body, decoded once and only in part: what routing, limits and metering need."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from llmgw.core.errors import InvalidRequestError

MODEL_CHARS_MAX: Final = 256
_ASK_FOR_USAGE: Final = b'"stream_options":{"include_usage":true},'


class BodyTooLargeError(InvalidRequestError):
    """The body exceeds what the gateway takes."""

    code = "request_too_large"


class MalformedCallError(InvalidRequestError):
    """The body is not a request to a model; `param` names the member which is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a model."""

    model: str
    """As the client named it: perhaps an alias."""
    body: bytes
    streamed: bool = False
    wants_usage: bool = False
    """The client asked for a usage event at the end of the stream."""
    has_stream_options: bool = False
    tokens_max: int | None = None
    n: int = 1


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | UnsetType | None = UNSET
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None


_decoder: Final = msgspec.json.Decoder(_Body)
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode(body: bytes) -> Call:
    """Decode a request's body; raise MalformedCallError with what is wrong where."""
    try:
        read = _decoder.decode(body)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        param = where.removesuffix("`") or None
        place = f"`{param}`: " if param else ""
        raise MalformedCallError(f"the request body is wrong: {place}{what}", param) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedCallError(f"the request body is not JSON: {error}") from error
    except RecursionError as error:
        raise MalformedCallError("the request body is nested too deeply") from error
    if not 0 < len(read.model) <= MODEL_CHARS_MAX:
        raise MalformedCallError(
            f"the request body is wrong: `model` needs 1 to {MODEL_CHARS_MAX} characters", "model"
        )
    options = read.stream_options
    return Call(
        model=read.model,
        body=body,
        streamed=bool(read.stream),
        wants_usage=isinstance(options, _StreamOptions) and bool(options.include_usage),
        has_stream_options=options is not UNSET,
        tokens_max=(
            read.max_tokens if read.max_completion_tokens is None else read.max_completion_tokens
        ),
        n=1 if read.n is None else read.n,
    )


def body_for_engine(call: Call, *, model: str, ask_usage: bool) -> bytes:
    """Return the body to send: the client's bytes, but for what the gateway must change.

    The engine knows the model by its own name, so an alias is replaced; and where `ask_usage`, the
    stream is to end with a usage event.
    """
    renamed = call.model != model
    if not renamed and not ask_usage:
        return call.body
    if not renamed and not call.has_stream_options:
        start = call.body.index(b"{") + 1
        return call.body[:start] + _ASK_FOR_USAGE + call.body[start:]
    members = _members.decode(call.body)
    if renamed:
        members["model"] = msgspec.Raw(msgspec.json.encode(model))
    if ask_usage:
        members["stream_options"] = _asking(members.get("stream_options"))
    return msgspec.json.encode(members)


def _asking(options: msgspec.Raw | None) -> msgspec.Raw:
    asked = msgspec.json.decode(options, type=dict[str, msgspec.Raw] | None) if options else None
    members = asked or {}
    # The client did not ask for usage, so it gets none with each chunk either.
    members.pop("continuous_usage_stats", None)
    members["include_usage"] = msgspec.Raw(b"true")
    return msgspec.Raw(msgspec.json.encode(members))
