"""A process that reads and then writes from many tasks: `python -m ... URL WRITERS TURNS`."""

import asyncio
import os
import sys

from llmgw.core.fleet.catalog import Catalog
from llmgw.core.traffic.usage import Ending, Usage
from llmgw.runtime.clock import SystemClock
from llmgw.store.store import open_store


async def main(url: str, writers: int, turns: int) -> None:
    """Open the store, as others do at the same time, and write."""
    async with open_store(url, SystemClock(), os.urandom) as store:

        async def write(writer: int) -> None:
            for turn in range(turns):
                await store.catalog.save(Catalog(), None, 1.0)
                name = f"{os.getpid()}.{writer}.{turn}"
                used = Usage(name, 1.0, "k", "a", "m", "/v1/completions", Ending.ANSWERED, 200)
                await store.usage.add([used], "g")
                await store.catalog.current()

        async with asyncio.TaskGroup() as group:
            for writer in range(writers):
                group.create_task(write(writer))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
