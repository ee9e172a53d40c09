"""Keeps the record and the identity on disk; when the disk refuses, the memory is the truth."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from llmgw.runner.identity import Identity, write_identity
from llmgw.runner.state import Record, write_record

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_S: Final = 1.0
ALIVE_S: Final = 10.0
ALIVE_EARLY_S: Final = 2.0
EARLY_S: Final = 180.0  # engines fork most of their processes while they load


class Keeper:
    """The record (published at each transition) and the identity of one shard."""

    def __init__(self, base: str, path: str, identity: Identity, record: Record) -> None:
        self._base = base
        self._path = path
        self.identity = identity
        self._record = record
        self._is_written = False
        self._retry_at_s = 0.0
        self._refused: str | None = None
        self._alive_at_s = 0.0
        self.listeners: list[Callable[[Record], None]] = []

    @property
    def record(self) -> Record:
        """The present record; its why says so where the disk does not hold it."""
        if self._refused is None:
            return self._record
        return replace(self._record, why=f"{self._record.why}; {self._refused}")

    def is_settled(self) -> bool:
        """Whether the disk holds the present record, or its directory was removed for good."""
        return self._is_written or os.stat(self._base).st_nlink == 0

    def publish(self, record: Record, now_s: float) -> None:
        """Make this the present record, write it, and tell the listeners."""
        if record == self._record and self._is_written:
            return
        self._record = record
        self._is_written = False
        self._write(now_s)
        for listener in self.listeners:
            listener(self.record)

    def _write(self, now_s: float) -> None:
        try:
            write_record(self._base, self._record)
        except OSError as fault:
            self._retry_at_s = now_s + RETRY_S
            self._refused = f"record.json cannot be written ({fault.strerror}), tried again"
            return
        self._is_written = True
        self._refused = None

    def begin(self) -> None:
        """Write the identity, then the record; OSError, with neither left, if they cannot be."""
        self.add_identity(self.identity)
        try:
            write_record(self._base, self._record)
        except OSError:
            os.unlink(self._path)
            raise
        self._is_written = True

    def add_identity(self, identity: Identity) -> None:
        """Make this the identity, on disk before anything else happens; OSError if it cannot."""
        write_identity(self._path, identity)
        self.identity = identity

    def step(self, now_s: float, seen: frozenset[int], ticks: int) -> None:
        """Write again what was refused, and every few seconds that the sessions `seen` are ours."""
        if not self._is_written and now_s >= self._retry_at_s:
            self._write(now_s)
            if self._is_written:
                for listener in self.listeners:
                    listener(self._record)
        if now_s < self._alive_at_s:
            return
        early = self._record.age_s() < EARLY_S
        self._alive_at_s = now_s + (ALIVE_EARLY_S if early else ALIVE_S)
        self.identity = self.identity.seen_at(seen, ticks)
        try:
            # Not durable: after a power cut this is another boot's, and proves nothing.
            write_identity(self._path, self.identity, durable=False)
        except OSError:
            return  # the next one may succeed; until then less can be proven, nothing wrongly
