"""A bounded queue between two tasks that can be closed: whoever waits at it then goes on."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class MailboxClosedError(Exception):
    """Nothing goes in or comes out any more."""


class Mailbox(Generic[T]):
    """First in, first out; what is inside when it is closed is dropped."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._items: deque[T] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    async def put(self, item: T) -> None:
        """Wait for room."""
        while len(self._items) >= self._size_max and not self._closed:
            await self._change()
        if self._closed:
            raise MailboxClosedError
        self._items.append(item)
        self._stir()

    async def get(self) -> T:
        """Wait for an item."""
        while not self._items and not self._closed:
            await self._change()
        if self._closed:
            raise MailboxClosedError
        item = self._items.popleft()
        self._stir()
        return item

    def close(self) -> None:
        """Wake all who wait."""
        self._closed = True
        self._items.clear()
        self._stir()

    async def _change(self) -> None:
        await self._changed.wait()

    def _stir(self) -> None:
        # A fresh event for those who come later: each waiter is woken once per change.
        self._changed.set()
        self._changed = asyncio.Event()
