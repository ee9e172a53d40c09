"""Links in a process of their own: `loops_process.py LOOP [CHILDREN]`.

Both ends talk all the time; meanwhile children are started, links are cut, and in the end
everything is closed. Prints what it found as JSON; anything on stderr is a complaint of asyncio,
gRPC or the interpreter.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time

import uvloop

from llmgw.testing.proxy import Proxy
from llmgw.testing.waiting import eventually
from llmgw.wire.agent_link import ControlLink
from llmgw.wire.messages import Answer, Cancel
from tests.wire.ends import Control, attach, serving


async def talk(children: int) -> dict[str, object]:
    """Use links in every way that ends them."""
    slowest_s = 0.0
    control = Control()
    async with serving(control) as server, Proxy(server.ports[0]) as proxy:
        async with attach(proxy.port) as link:
            await eventually(lambda: len(server.links) == 1)
            async with asyncio.TaskGroup() as group:
                chatter = group.create_task(_chat(link, control))
                for _ in range(children):
                    started_s = time.monotonic()
                    await asyncio.to_thread(subprocess.run, ["/bin/true"], check=True)
                    slowest_s = max(slowest_s, time.monotonic() - started_s)
                chatter.cancel()
            proxy.cut()
            async for _ in link:
                pass
        async with attach(server.ports[0]) as link:
            await link.close("the test is over")
        async with attach(server.ports[0], "n2"):
            pass
        async with attach(server.ports[0], "n3") as link:
            await link.send(Answer(1))
    tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    return {"heard": len(control.heard), "slowest_s": slowest_s, "tasks": tasks}


async def _chat(link: ControlLink, control: Control) -> None:
    number = 0
    while True:
        number += 1
        await link.send(Answer(number))
        for agent in control.live:
            await agent.send(Cancel(number))
        await link.receive()


def main(loop: str, children: int) -> None:
    """Run it, and look at what is left."""
    before = len(os.listdir("/proc/self/fd"))
    if loop == "uvloop":
        found = uvloop.run(talk(children), debug=True)
    else:
        found = asyncio.run(talk(children), debug=True)
    gc.collect()
    found["descriptors"] = len(os.listdir("/proc/self/fd")) - before
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
