"""The stream between an agent and a control plane, both ends of it."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from llmgw.runtime.clock import Clock
from llmgw.wire import agent_codec
from llmgw.wire.dialing import DialOptions, Service, dial
from llmgw.wire.link import Link
from llmgw.wire.messages import AgentDown, AgentUp, Hello, Refusal, Welcome
from llmgw.wire.serving import LinkServer, ListenOptions, Served

SERVICE: Final = "llmgw.v1.Agents"
METHOD: Final = "Attach"

ControlLink = Link[Welcome, AgentUp, AgentDown]
"""As the agent sees it."""
AgentLink = Link[Hello, AgentDown, AgentUp]
"""As the control plane sees it."""

_DIALED: Final = Service(f"/{SERVICE}/{METHOD}", agent_codec.UP, agent_codec.DOWN)


def dial_control(
    endpoint: str, hello: Hello, options: DialOptions, clock: Clock
) -> AbstractAsyncContextManager[ControlLink]:
    """Attach to a control plane for one link; raises LinkLostError or LinkRefusedError."""
    return dial(_DIALED, endpoint, hello, options, clock)


class AgentServer(LinkServer[Hello, AgentDown, AgentUp]):
    """The service to which agents attach."""

    def __init__(
        self,
        addresses: Sequence[str],
        on_link: Callable[[AgentLink], Awaitable[None]],
        welcome: Callable[[Hello], Welcome | Refusal],
        clock: Clock,
        options: ListenOptions,
    ) -> None:
        served = Served(SERVICE, METHOD, Hello, _key, _name, agent_codec.DOWN, agent_codec.UP)
        super().__init__(served, addresses, on_link, welcome, clock, options)


def _key(hello: Hello) -> str:
    return hello.node


def _name(hello: Hello) -> str:
    return f"node {hello.name or hello.node}"
