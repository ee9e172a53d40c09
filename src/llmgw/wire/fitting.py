"""Cuts what is too large before it is sent, with a note; so size never costs a link.

What a report must not lose is the list of its shards: a shard that is missing from a report has
failed. Texts that only people read go first, what can be asked for again later, specs last.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from llmgw.core.document import dump
from llmgw.core.fleet.hardware import Inventory
from llmgw.core.fleet.report import Event, Report, ShardReport
from llmgw.wire.messages import Answer

TEXT_CHARS_MAX: Final = 2_000
"""Of one sentence or one last log line in a report."""
WHY_CHARS: Final = 200
"""Of a shard's sentence where room is short."""
EVENTS_MAX: Final = 256
"""In one report: the newest."""
WARNINGS_MAX: Final = 64
"""In one inventory."""
LABELS_MAX: Final = 256
REFUSED_MAX: Final = 1_024
PORTS_TAKEN_MAX: Final = 4_096
REPORT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the document. A node with 8 shards has about 30 KB."""

LINE_CHARS_MAX: Final = 16_384
"""Of one log line in an answer."""
ANSWER_CHARS: Final = 128 * 1024
"""Of the lines in one part of an answer."""

CUT_NOTE: Final = "this report was cut to fit: "


def fit(report: Report) -> Report:
    """Return the report, or what of it fits, with a warning in its inventory that says so."""
    cut = _with_bounded_texts(report)
    if cut == report and _bytes(report) <= REPORT_BYTES_MAX:
        return report
    notes = ["long texts or lists"] if cut != report else []
    for what, smaller in _smaller(cut):
        if _bytes(cut) <= REPORT_BYTES_MAX:
            break
        cut = smaller
        notes.append(what)
    return _noted(cut, notes) if notes else cut


def split(answer: Answer) -> tuple[Answer, ...]:
    """Return the answer in parts that are small enough; only the last one ends it."""
    parts: list[list[str]] = [[]]
    room = ANSWER_CHARS
    for line in answer.lines:
        short = _text(line, LINE_CHARS_MAX)
        if len(short) + 1 > room and parts[-1]:
            parts.append([])
            room = ANSWER_CHARS
        parts[-1].append(short)
        room -= len(short) + 1
    ends = tuple(parts.pop())
    error = _text(answer.error, LINE_CHARS_MAX)
    before = tuple(Answer(answer.id, tuple(lines)) for lines in parts)
    return (*before, replace(answer, lines=ends, error=error))


def _bytes(report: Report) -> int:
    return len(dump(report).encode())


def _smaller(report: Report) -> Iterator[tuple[str, Report]]:
    """Give ever smaller versions, each with the words for what it lacks."""
    report = replace(report, events=())
    yield "its events", report
    bare = replace(report.inventory, labels={}, warnings=(), ports_taken=(), unknown={})
    report = replace(report, inventory=bare, refused={}, waiting={}, unknown={})
    yield "labels, warnings, taken ports, refusals and what this version does not know", report
    shards = tuple(replace(s, last_log="", why=_text(s.why, WHY_CHARS)) for s in report.shards)
    report = replace(report, shards=shards)
    yield "log lines", report
    shards = tuple(replace(s, spec=None) for s in report.shards)
    yield "the specs of its shards", replace(report, shards=shards)


def _noted(report: Report, notes: list[str]) -> Report:
    warnings = [w for w in report.inventory.warnings if not w.startswith(CUT_NOTE)]
    warnings = [*warnings[: WARNINGS_MAX - 1], CUT_NOTE + ", ".join(notes)]
    return replace(report, inventory=replace(report.inventory, warnings=tuple(warnings)))


def _with_bounded_texts(report: Report) -> Report:
    return replace(
        report,
        inventory=_with_bounded_inventory(report.inventory),
        shards=tuple(_with_bounded_shard(shard) for shard in report.shards),
        events=tuple(_with_bounded_event(event) for event in report.events[-EVENTS_MAX:]),
        refused=_texts(report.refused, REFUSED_MAX),
        waiting=_texts(report.waiting, REFUSED_MAX),
    )


def _with_bounded_shard(shard: ShardReport) -> ShardReport:
    why, last_log = _text(shard.why), _text(shard.last_log)
    if why is shard.why and last_log is shard.last_log:
        return shard
    return replace(shard, why=why, last_log=last_log)


def _with_bounded_event(event: Event) -> Event:
    return replace(event, subject=_text(event.subject), what=_text(event.what))


def _with_bounded_inventory(inventory: Inventory) -> Inventory:
    return replace(
        inventory,
        labels=_texts(inventory.labels, LABELS_MAX),
        warnings=tuple(_text(w) for w in inventory.warnings[:WARNINGS_MAX]),
        ports_taken=inventory.ports_taken[:PORTS_TAKEN_MAX],
    )


def _texts(values: Mapping[str, str], count_max: int) -> Mapping[str, str]:
    names = sorted(values)[:count_max]
    return {_text(name): _text(values[name]) for name in names}


def _text(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return the text within the bound, and such that it can be written as UTF-8."""
    if len(text) > chars_max:
        note = f"… ({len(text)} characters)"
        text = text[: chars_max - len(note)] + note
    # A lone surrogate stands for a byte that was not UTF-8; no document can hold one.
    return text if _writable(text) else text.encode(errors="replace").decode()


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
