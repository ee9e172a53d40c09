"""Pieces are joined to what was cut; wrong ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.errors import MalformedError
from llmgw.wire.frames import PIECE_BYTES, Joiner, Piece, pieces


@pytest.mark.parametrize(
    ("size", "count"),
    [(0, 1), (1, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2), (10 * PIECE_BYTES, 10)],
)
def test_a_message_is_cut_into_as_few_pieces_as_hold_it(size: int, count: int) -> None:
    data = bytes(i % 251 for i in range(size))
    cut = list(pieces(data))
    assert len(cut) == count
    assert b"".join(piece.data for piece in cut) == data
    joiner = Joiner(size)
    joined = [joiner.add(piece) for piece in cut]
    assert joined[-1] == data
    assert joined[:-1] == [None] * (count - 1)


def test_a_message_that_was_given_up_is_forgotten_when_the_next_begins() -> None:
    joiner = Joiner(100)
    assert joiner.add(Piece(b"never ", 0, last=False)) is None
    assert joiner.add(Piece(b"whole", 0, last=True)) == b"whole"
    assert joiner.add(Piece(b"next", 0, last=True)) == b"next"


def test_a_missing_piece_is_noticed() -> None:
    joiner = Joiner(100)
    joiner.add(Piece(b"a", 0, last=False))
    with pytest.raises(MalformedError, match="number 2 came after 1"):
        joiner.add(Piece(b"c", 2, last=True))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_no_more_is_held_than_the_bound(sizes: list[int]) -> None:
    joiner, held = Joiner(100), 0
    for index, size in enumerate(sizes):
        held += size
        piece = Piece(b"x" * size, index, last=False)
        if held > 100:
            with pytest.raises(MalformedError, match="more than 100 bytes"):
                joiner.add(piece)
            return
        assert joiner.add(piece) is None
