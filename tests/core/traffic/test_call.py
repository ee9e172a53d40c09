import json

import pytest

from llmgw.core.traffic.call import MalformedCallError, body_for_engine, decode


def test_what_routing_and_metering_need_is_decoded() -> None:
    call = decode(
        b'{"messages":[],"model":"m","stream":true,"stream_options":{"include_usage":true},'
        b'"max_tokens":5,"n":2}'
    )
    assert (call.model, call.streamed, call.wants_usage) == ("m", True, True)
    assert (call.tokens_max, call.n) == (5, 2)


def test_the_newer_limit_wins_over_the_older() -> None:
    assert decode(b'{"model":"m","max_tokens":5,"max_completion_tokens":7}').tokens_max == 7


def test_null_is_the_same_as_absent() -> None:
    call = decode(b'{"model":"m","stream":null,"max_tokens":null,"n":null}')
    assert (call.streamed, call.tokens_max, call.n) == (False, None, 1)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "not JSON"),
        (b"{broken", None, "not JSON"),
        (b"\xff\xfe", None, "not JSON"),
        (b"[]", None, "Expected `object`"),
        (b"{}", None, "model"),
        (b'{"model":7}', "model", "`model`: Expected `str`, got `int`"),
        (b'{"model":""}', "model", "1 to 256 characters"),
        (b'{"model":"' + b"m" * 257 + b'"}', "model", "1 to 256 characters"),
        (b'{"model":"m","stream":"yes"}', "stream", "`stream`"),
        (b'{"model":"m","stream_options":{"include_usage":3}}', "stream_options.include_usage", ""),
        (b'{"model":"m","max_tokens":"many"}', "max_tokens", "`max_tokens`"),
        (b'{"model":"m","a":' + b"[" * 200_000, None, ""),
    ],
)
def test_a_wrong_body_is_refused_with_what_is_wrong_where(
    body: bytes, param: str | None, says: str
) -> None:
    with pytest.raises(MalformedCallError) as refused:
        decode(body)
    assert refused.value.param == param
    assert says in str(refused.value)


def test_a_body_that_needs_no_change_is_sent_as_it_came() -> None:
    body = b' {"model" : "m", "x": 1.50, "stream":false}'
    assert body_for_engine(decode(body), model="m", ask_usage=False) is body


def test_asking_for_usage_changes_nothing_else() -> None:
    body = b'\n{"model":"m","x":1.50e0,"stream":true,"big":12345678901234567890}'
    sent = body_for_engine(decode(body), model="m", ask_usage=True)
    assert sent == body.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("null", {"include_usage": True}),
        ("{}", {"include_usage": True}),
        ('{"include_usage":false,"x":[1]}', {"include_usage": True, "x": [1]}),
        ('{"continuous_usage_stats":true}', {"include_usage": True}),
    ],
)
def test_the_clients_own_stream_options_are_kept(options: str, expected: object) -> None:
    body = f'{{"model":"m","stream":true,"stream_options":{options},"x":1.50}}'.encode()
    sent = body_for_engine(decode(body), model="m", ask_usage=True)
    assert json.loads(sent) == {"model": "m", "stream": True, "stream_options": expected, "x": 1.5}
    assert sent.count(b'"stream_options"') == 1
    assert b"1.50" in sent


def test_an_alias_is_replaced_by_the_models_own_name() -> None:
    body = '{"model":"alias","messages":[{"content":"alias \\u00e9 \u2028"}]}'.encode()
    sent = body_for_engine(decode(body), model="org/model", ask_usage=False)
    assert json.loads(sent) == {**json.loads(body), "model": "org/model"}
