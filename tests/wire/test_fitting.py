"""What is too large is cut with a note; shards are never lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.document import dump
from llmgw.core.fleet.report import Event, Report
from llmgw.wire import agent_codec, fitting
from llmgw.wire.fitting import CUT_NOTE, REPORT_BYTES_MAX, fit, split
from llmgw.wire.messages import Answer
from tests.wire import values

HUNDRED_MB = 100 * 1000 * 1000


@given(values.reports)
def test_an_ordinary_report_is_left_as_it_is(report: Report) -> None:
    assert fit(report) is report


def _huge(what: str) -> Report:
    ordinary = values.report(values.shard_report("r1"), values.shard_report("r2"))
    first, second = ordinary.shards
    inventory = ordinary.inventory
    match what:
        case "a log line":
            return replace(ordinary, shards=(replace(first, last_log=_long()), second))
        case "a reason":
            return replace(ordinary, shards=(first, replace(second, why=_long())))
        case "bytes that are not UTF-8":
            return replace(ordinary, shards=(replace(first, last_log="\udcff" * 10), second))
        case "events":
            many = tuple(Event("s", f"{i} " + "e" * 1_000, sequence=i) for i in range(100_000))
            return replace(ordinary, events=many)
        case "labels and warnings":
            labels = {f"label {i}": "v" * 5_000 for i in range(20_000)}
            inventory = replace(inventory, labels=labels, warnings=(_long(),) * 3)
            return replace(ordinary, inventory=inventory)
        case "taken ports":
            inventory = replace(inventory, ports_taken=tuple(range(10**6)))
            return replace(ordinary, inventory=inventory)
        case "refusals":
            return replace(ordinary, refused={f"r{i}.1.0": "no " * 5_000 for i in range(2_000)})
        case "what is not known":
            return replace(ordinary, unknown={"future": "f" * (REPORT_BYTES_MAX + 1)})
        case _:
            specs = [values.spec(f"r{i}", "x" * 900_000) for i in range(8)]
            return values.report(*(values.shard_report(s.replica, spec=s) for s in specs))


def _long() -> str:
    return "ä\n" * (HUNDRED_MB // 2)


@pytest.mark.parametrize(
    "what",
    [
        "a log line",
        "a reason",
        "bytes that are not UTF-8",
        "events",
        "labels and warnings",
        "taken ports",
        "refusals",
        "what is not known",
        "specs",
    ],
)
def test_a_report_of_any_size_fits_with_all_its_shards_and_a_note(what: str) -> None:
    report = _huge(what)
    cut = fit(report)
    assert len(dump(cut).encode()) <= REPORT_BYTES_MAX
    assert [(s.key, s.phase) for s in cut.shards] == [(s.key, s.phase) for s in report.shards]
    assert cut.inventory.node == report.inventory.node
    notes = [w for w in cut.inventory.warnings if w.startswith(CUT_NOTE)]
    assert len(notes) == 1
    assert fit(cut) == cut
    assert agent_codec.UP.decode(agent_codec.UP.encode(cut)) == cut


def test_of_many_events_the_newest_are_kept() -> None:
    events = tuple(Event("s", "e", sequence=i) for i in range(1_000))
    kept = fit(replace(values.report(), events=events)).events
    assert [e.sequence for e in kept] == list(range(1_000 - fitting.EVENTS_MAX, 1_000))


def test_a_cut_text_says_how_long_it_was() -> None:
    report = values.report(values.shard_report(last_log="x" * 5_000))
    (shard,) = fit(report).shards
    assert len(shard.last_log) == fitting.TEXT_CHARS_MAX
    assert shard.last_log.endswith("… (5000 characters)")


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=200),
    st.booleans(),
    values.texts,
)
def test_the_parts_of_an_answer_hold_its_lines_in_order(
    lines: list[str], last: bool, error: str
) -> None:
    repeated = tuple(line * 500 for line in lines)
    parts = split(Answer(7, repeated, last, error))
    assert [line for part in parts for line in part.lines] == list(repeated)
    assert all(part.id == 7 and not part.last and not part.error for part in parts[:-1])
    assert (parts[-1].last, parts[-1].error) == (last, error)
    for part in parts:
        assert sum(len(line) + 1 for line in part.lines) <= fitting.ANSWER_CHARS


def test_a_log_line_of_100_mb_is_cut() -> None:
    (part,) = split(Answer(1, ("x" * HUNDRED_MB,), last=True))
    assert len(part.lines[0]) == fitting.LINE_CHARS_MAX
    assert part.lines[0].endswith(f"({HUNDRED_MB} characters)")
    assert part.last
