import json

import pytest

from llmgw.core.traffic.tokens import (
    COUNT_MAX,
    TAIL_BYTES,
    WHOLE_ANSWER_BYTES_MAX,
    Tokens,
    estimate,
    look_at,
    tokens_in,
)

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
CACHED = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def test_a_usage_event_is_alone_only_without_choices() -> None:
    assert look_at(event({"choices": [], "usage": CACHED})).tokens == Tokens(9, 3, 4)
    assert look_at(event({"choices": [], "usage": USAGE})).alone
    with_text = look_at(event({"choices": [{"delta": {"content": "A"}}], "usage": USAGE}))
    assert with_text.tokens == Tokens(9, 3)
    assert not with_text.alone


def test_usage_over_several_data_lines_is_read() -> None:
    cut = b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
    assert look_at(cut).tokens == Tokens(9, 3)


@pytest.mark.parametrize(
    ("payload", "message", "blames_request"),
    [
        ({"error": {"message": "EngineCore died", "code": 500}}, "EngineCore died", False),
        ({"error": {"message": "too long", "code": 400}}, "too long", True),
        ({"error": {"message": "odd", "code": "4"}}, "odd", False),
        ({"error": "bad"}, "bad", False),
    ],
)
def test_an_error_event_says_whose_fault_it_is(
    payload: object, message: str, blames_request: bool
) -> None:
    seen = look_at(event(payload))
    assert (seen.error, seen.blames_request) == (message, blames_request)


def test_a_named_error_event_is_an_error_whatever_its_data() -> None:
    assert look_at(b'event: error\ndata: {"message":"boom"}\n\n').error == '{"message":"boom"}'
    assert look_at(b"event: error\ndata: boom\n\n").error == "boom"


@pytest.mark.parametrize(
    "raw",
    [
        b"data: {\n\n",
        b'data: {"usage":{"prompt_tokens":"9"}}\n\n',
        b'data: {"error":null,"choices":[]}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"choices":[{"delta":{"content":"error"}}]}\n\n',
    ],
)
def test_what_cannot_be_read_carries_nothing(raw: bytes) -> None:
    seen = look_at(raw)
    assert seen.tokens is None
    assert seen.error is None


def test_usage_is_found_in_small_answers_and_near_the_end_of_large_ones() -> None:
    small = json.dumps({"choices": [{"text": '"usage":{'}], "usage": CACHED}).encode()
    assert tokens_in(small) == Tokens(9, 3, 4)
    rows = [{"embedding": [0.1] * 20_000}]
    large = json.dumps({"data": rows, "usage": CACHED, "id": "x", "timings": {"a": 1}}).encode()
    assert len(large) > WHOLE_ANSWER_BYTES_MAX
    assert tokens_in(large) == Tokens(9, 3, 4)
    assert tokens_in(large[-TAIL_BYTES:]) == Tokens(9, 3, 4)


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b'{"usage":null}', b"x" * 70_000, b'"usage"', b"[]"]
)
def test_an_answer_without_usage_has_none(answer: bytes) -> None:
    assert tokens_in(answer) is None


def test_negative_figures_count_as_none() -> None:
    assert tokens_in(b'{"usage":{"prompt_tokens":-5,"completion_tokens":2}}') == Tokens(0, 2)


def test_the_guess_is_a_token_for_four_bytes_rounded_up() -> None:
    assert [estimate(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_figures_may_be_written_with_a_point_and_are_bounded() -> None:
    def tokens(prompt: str) -> int:
        found = tokens_in(b'{"usage":{"prompt_tokens":%b}}' % prompt.encode())
        assert found is not None
        return found.prompt

    assert [tokens(one) for one in ("9.0", "1e3", "null")] == [9, 1000, 0]
    assert tokens("1" + "0" * 30) == tokens("1e300") == COUNT_MAX
