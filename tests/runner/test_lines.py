"""Secrets are found however the bytes are split, and nothing but secrets is lost."""

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.runner.lines import BLANKED, LINE_BYTES_MAX, Blanker, Line, LineCutter

# Few letters, so that secrets overlap each other and themselves all the time.
ALPHABET = st.sampled_from([b"a", b"b", b"\n"])
TEXTS = st.lists(ALPHABET, max_size=60).map(b"".join)
SECRETS = st.lists(st.lists(ALPHABET, min_size=1, max_size=6).map(b"".join), max_size=4)
SPLITS = st.lists(st.integers(0, 60), max_size=12)


def in_pieces(text: bytes, splits: list[int]) -> list[bytes]:
    edges = sorted({0, len(text), *(split for split in splits if split <= len(text))})
    return [text[begin:end] for begin, end in itertools.pairwise(edges)]


def blank_slowly(text: bytes, secrets: list[bytes]) -> bytes:
    """The oracle: mark every byte of every occurrence, then put BLANKED for each marked run.

    Runs that touch are one here; see `loosely`.
    """
    marked = [
        any(
            text[start : start + len(secret)] == secret
            for secret in secrets
            for start in range(max(0, at - len(secret) + 1), at + 1)
        )
        for at in range(len(text))
    ]
    out = bytearray()
    for at, byte in enumerate(text):
        if not marked[at]:
            out.append(byte)
        elif at == 0 or not marked[at - 1]:
            out += BLANKED
    return bytes(out)


def loosely(blanked: bytes) -> bytes:
    return re.sub(rb"(\*\*\*)+", BLANKED, blanked)


@settings(deadline=None)
@given(TEXTS, SECRETS, SPLITS)
def test_every_occurrence_is_blanked_and_nothing_else(
    text: bytes, secrets: list[bytes], splits: list[int]
) -> None:
    blanker = Blanker(secrets)
    out = b"".join(map(blanker.feed, in_pieces(text, splits))) + blanker.flush()
    assert loosely(out) == blank_slowly(text, secrets)


@settings(deadline=None)
@given(TEXTS, SECRETS, SPLITS)
def test_what_is_held_back_is_shorter_than_a_secret(
    text: bytes, secrets: list[bytes], splits: list[int]
) -> None:
    blanker = Blanker(secrets)
    longest = max(map(len, secrets), default=0)
    for piece in in_pieces(text, splits):
        blanker.feed(piece)
        assert blanker.held_bytes <= max(0, longest - 1)


@settings(deadline=None)
@given(st.text("0123456789abcdef", min_size=16, max_size=64), TEXTS, SPLITS, st.integers(1, 63))
def test_the_rest_of_a_secret_whose_beginning_was_dropped_is_blanked(
    secret: str, after: bytes, splits: list[int], cut: int
) -> None:
    key = secret.encode()
    rest = key[min(cut, len(key) - 1) :]
    blanker = Blanker([key])
    blanker.feed(b"before")
    blanker.skip()
    out = b"".join(map(blanker.feed, in_pieces(rest + after, splits))) + blanker.flush()
    assert out.startswith(BLANKED)
    # What was blanked is at most the longest secret less one byte; what follows is whole.
    assert out[len(BLANKED) :] == (rest + after)[len(key) - 1 :]


@settings(deadline=None)
@given(
    st.lists(st.text("xyz \t", min_size=1, max_size=9).map(str.encode), max_size=20),
    st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=20, max_size=20),
    SPLITS,
)
def test_lines_end_at_each_kind_of_line_end(
    texts: list[bytes], ends: list[bytes], splits: list[int]
) -> None:
    stream = b"".join(text + end for text, end in zip(texts, ends, strict=False))
    cutter = LineCutter()
    lines = [line for piece in in_pieces(stream, splits) for line in cutter.feed(piece)]
    assert lines == [Line(text) for text in texts]


def test_a_long_line_comes_in_pieces_that_say_so() -> None:
    cutter = LineCutter()
    lines = cutter.feed(b"x" * (2 * LINE_BYTES_MAX + 10)) + cutter.feed(b"y\nz\n")
    assert [line.continues for line in lines] == [False, True, True, True, False]
    assert max(len(line.text) for line in lines) == LINE_BYTES_MAX
    assert b"".join(line.text for line in lines) == b"x" * (2 * LINE_BYTES_MAX + 10) + b"yz"


def test_control_characters_cannot_command_a_terminal() -> None:
    assert LineCutter().feed(b"\x1b[2J\x07ok\t\x00\x7f\n") == [Line(b"?[2J?ok\t??")]
