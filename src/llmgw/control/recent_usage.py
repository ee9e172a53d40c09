"""Sums of usage where there is no ledger: of what a gateway's journal still holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmgw.admin.schema import UsageInfo
from llmgw.core.traffic.usage import Usage
from llmgw.store.usage import DAY_S, By


@dataclass(slots=True)
class _Sum:
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: int = 0

    def add(self, record: Usage) -> None:
        self.requests += 1
        self.prompt_tokens += record.prompt_tokens
        self.completion_tokens += record.completion_tokens
        self.cached_tokens += record.cached_tokens
        self.estimated += record.estimated


def totals(
    records: Iterable[Usage], since_wall_s: float, until_wall_s: float, by: Sequence[By]
) -> tuple[UsageInfo, ...]:
    """Sum up what was opened from `since` on and before `until`, split and sorted by `by`."""
    sums: dict[tuple[str | int, ...], _Sum] = {} if by else {(): _Sum()}
    for record in records:
        if since_wall_s <= record.opened_wall_s < until_wall_s:
            sums.setdefault(tuple(_value(record, one) for one in by), _Sum()).add(record)
    return tuple(_info(dict(zip(by, group, strict=True)), sums[group]) for group in sorted(sums))


def _value(record: Usage, by: By) -> str | int:
    match by:
        case By.ACCOUNT:
            return record.account
        case By.KEY:
            return record.key
        case By.MODEL:
            return record.model
        case By.DAY:
            return int(record.opened_wall_s // DAY_S)


def _info(group: dict[By, str | int], total: _Sum) -> UsageInfo:
    day = group.get(By.DAY)
    return UsageInfo(
        total.requests,
        total.prompt_tokens,
        total.completion_tokens,
        total.cached_tokens,
        total.estimated,
        _text(group.get(By.ACCOUNT)),
        _text(group.get(By.KEY)),
        _text(group.get(By.MODEL)),
        day if isinstance(day, int) else None,
    )


def _text(value: str | int | None) -> str | None:
    return value if isinstance(value, str) else None
