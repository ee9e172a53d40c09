"""Work that ends together: when one part is over, so is the rest."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_first(*work: Coroutine[Any, Any, object]) -> None:
    """Run all until the first ends, and cancel the others; failures come as an exception group."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
