import collections
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.traffic.sse import (
    EVENT_BYTES_MAX,
    EventFramer,
    EventKind,
    EventTooLargeError,
    fields_of,
    kind_of,
)

MIXED = (
    b"\xef\xbb\xbfevent: delta\r\ndata: a\xe2\x80\xa8b\r\n\r\n"
    b"data: x\rdata: y\r\r: comment\n\ndata: [DONE]\n\n\n\ndata: late\r\n\n"
)
EVENTS = [
    b"\xef\xbb\xbfevent: delta\r\ndata: a\xe2\x80\xa8b\r\n\r\n",
    b"data: x\rdata: y\r\r",
    b": comment\n\n",
    b"data: [DONE]\n\n",
    b"\n\n",
    b"data: late\r\n\n",
]


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, len(MIXED)), max_size=12))
def test_the_cuts_between_chunks_do_not_matter(cuts: list[int]) -> None:
    framer = EventFramer()
    assert [event for piece in pieces(MIXED, cuts) for event in framer.feed(piece)] == EVENTS
    assert framer.rest == b""


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"data: x", b"\n\n"])), st.data())
def test_no_byte_is_lost_added_or_moved(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    framer = EventFramer()
    events = [event for piece in pieces(stream, cuts) for event in framer.feed(piece)]
    assert b"".join(events) + framer.rest == stream
    for event in events:  # an oracle of its own: rewrite all line ends, then look for blank lines
        plain = re.sub(rb"\r\n|\r", b"\n", event)
        assert plain.endswith(b"\n\n")
        assert b"\n\n" not in plain[:-2] or plain == b"\n\n\n"


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: x\n" * 8192], ids=["line", "many lines"])
def test_an_event_without_end_is_refused_before_it_fills_the_memory(piece: bytes) -> None:
    framer = EventFramer()
    stream = itertools.repeat(piece, 2 * EVENT_BYTES_MAX // 65536)
    with pytest.raises(EventTooLargeError):
        collections.deque(map(framer.feed, stream), maxlen=0)
    assert len(framer.rest) <= EVENT_BYTES_MAX + 65536


CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{%s},"finish_reason":null}]%s}\n\n'


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (CHUNK % (b'"content":"A"', b""), EventKind.TEXT),
        (CHUNK % (b'"content": "A"', b',"usage":null'), EventKind.TEXT),
        (CHUNK % (b'"reasoning_content":"hm"', b""), EventKind.TEXT),
        (CHUNK % (b'"tool_calls":[{"function":{"arguments":"{"}}]', b""), EventKind.TEXT),
        (CHUNK % (b'"content":"\\"usage\\":{"', b""), EventKind.TEXT),
        (CHUNK % (b'"role":"assistant","content":null', b""), EventKind.OTHER),
        (CHUNK % (b'"content":""', b""), EventKind.OTHER),
        (CHUNK % (b'"content":"A"', b',"usage": {"prompt_tokens":1}'), EventKind.USAGE),
        (b'data:{"choices":[],"usage":{"prompt_tokens":9}}\r\n\r\n', EventKind.USAGE),
        (b'data: {"error":{"message":"EngineCore died"}}\n\n', EventKind.ERROR),
        (b'event: error\ndata: {"message":"boom"}\n\n', EventKind.ERROR),
        (b"data: [DONE]\n\n", EventKind.END),
        (b"data:  [DONE] \r\n\r\n", EventKind.END),
        (b": ping\n\n", EventKind.OTHER),
        (CHUNK % (b'"content":"data: [DONE]"', b""), EventKind.TEXT),
    ],
)
def test_the_kind_of_an_event_is_found_by_searching(event: bytes, kind: EventKind) -> None:
    assert kind_of(event) is kind


def test_an_event_is_read_as_the_standard_says() -> None:
    assert fields_of(EVENTS[0]) == ("delta", "a\u2028b")
    assert fields_of(EVENTS[1]) == ("", "x\ny")
    assert fields_of(b'data: {"a":1,\ndata: "b":2}\n\n') == ("", '{"a":1,\n"b":2}')
