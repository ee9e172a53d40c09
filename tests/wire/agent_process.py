"""An agent's link in a process of its own: `agent_process.py PORT`."""

import asyncio
import sys

from tests.wire.ends import running
from tests.wire.test_severed import Agent


async def main(port: int) -> None:
    """Keep a link until the process is ended."""
    async with running(Agent(port).dialer):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
