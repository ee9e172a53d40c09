"""A process that takes the lead, says its term and waits to be killed: `python -m ... URL`."""

import asyncio
import os
import sys

from llmgw.runtime.clock import SystemClock
from llmgw.store.store import open_store


async def main(url: str) -> None:
    """Lead until standard input ends."""
    async with (
        open_store(url, SystemClock(), os.urandom) as store,
        store.lead(f"pid {os.getpid()}") as lead,
    ):
        sys.stdout.write(f"{lead.term}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
