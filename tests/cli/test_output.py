"""How things are said: columns, durations, moments, and progress without a terminal."""

import pytest

from llmgw.cli.ctl.looking import moment, seconds
from llmgw.cli.output import aligned, at, printable, span
from llmgw.cli.screen import AGAIN_S, PlainScreen, Row
from llmgw.core.errors import InvalidRequestError
from llmgw.testing.clock import ManualClock


def test_columns_begin_below_each_other() -> None:
    assert aligned([["A", "BBB", "C"], ["aaaa", "b", ""]]) == ["A     BBB  C", "aaaa  b"]


@pytest.mark.parametrize(
    ("duration_s", "said"),
    [(0.4, "0s"), (119.0, "119s"), (120.0, "2m"), (7_200.0, "2h"), (172_800.0, "2d")],
)
def test_durations_are_said_in_one_unit(duration_s: float, said: str) -> None:
    assert span(duration_s) == said


def test_what_others_wrote_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2J\nb") == "a\\x1b[2J\\nb"


def test_a_moment_is_shown_with_its_zone_and_can_be_typed_again() -> None:
    shown = at(1_769_817_600.0)
    assert shown.startswith("2026-01-3")
    assert shown[-6] in "+-"
    assert moment(shown, 0.0) == 1_769_817_600.0


def test_moments_are_read_as_ages_and_as_dates() -> None:
    assert moment("2d", 1_000_000.0) == 1_000_000.0 - 172_800.0
    assert moment("2026-01-31T00:00:00+00:00", 0.0) == 1_769_817_600.0
    assert seconds("1.5h") == 5_400.0
    for wrong in ("2 days", "yesterday", "-1h", ""):
        with pytest.raises(InvalidRequestError, match="write"):
            moment(wrong, 0.0)
        with pytest.raises(InvalidRequestError, match="write"):
            seconds(wrong)


def row(phase: str, why: str = "because") -> Row:
    """Return one replica in a phase."""
    return Row("r.1", "p", "gpu-1", phase, why)


def test_without_a_terminal_a_line_is_written_when_a_phase_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock()
    with PlainScreen(clock) as screen:
        screen.show([row("loading", "for 1 s")], "")
        screen.show([row("loading", "for 2 s")], "")
        screen.show([row("ready")], "")
        screen.show([], "")
    assert capsys.readouterr().err.splitlines() == [
        "p r.1 on gpu-1: loading, for 1 s",
        "p r.1 on gpu-1: ready, because",
        "p r.1: gone",
    ]


def test_what_takes_long_is_said_again_but_not_what_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock()
    screen = PlainScreen(clock)
    for _ in range(3):
        screen.show([row("loading"), Row("s.1", "p", "gpu-1", "ready", "well")], "")
        clock.advance(AGAIN_S)
    said = capsys.readouterr().err
    assert said.count("loading") == 3
    assert said.count("ready") == 1
