"""The stream between a gateway and a control plane, both ends of it.

The server sends a whole Snapshot first and Changes after it. A gateway that is given a Change for
another snapshot than its own ends the link: the next one starts with a whole Snapshot again.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from llmgw.runtime.clock import Clock
from llmgw.wire import gateway_codec
from llmgw.wire.dialing import DialOptions, Service, dial
from llmgw.wire.link import Link
from llmgw.wire.messages import GatewayDown, GatewayHello, GatewayUp, Refusal, Welcome
from llmgw.wire.serving import LinkServer, ListenOptions, Served

SERVICE: Final = "llmgw.v1.Gateways"
METHOD: Final = "Follow"

PublisherLink = Link[Welcome, GatewayUp, GatewayDown]
"""As the gateway sees it."""
GatewayLink = Link[GatewayHello, GatewayDown, GatewayUp]
"""As the control plane sees it."""

_DIALED: Final = Service(f"/{SERVICE}/{METHOD}", gateway_codec.UP, gateway_codec.DOWN)


def follow_control(
    endpoint: str, hello: GatewayHello, options: DialOptions, clock: Clock
) -> AbstractAsyncContextManager[PublisherLink]:
    """Follow a control plane for one link; raises LinkLostError or LinkRefusedError."""
    return dial(_DIALED, endpoint, hello, options, clock)


class GatewayServer(LinkServer[GatewayHello, GatewayDown, GatewayUp]):
    """The service that gateways follow."""

    def __init__(
        self,
        addresses: Sequence[str],
        on_link: Callable[[GatewayLink], Awaitable[None]],
        welcome: Callable[[GatewayHello], Welcome | Refusal],
        clock: Clock,
        options: ListenOptions,
    ) -> None:
        served = Served(
            SERVICE, METHOD, GatewayHello, _key, _name, gateway_codec.DOWN, gateway_codec.UP
        )
        super().__init__(served, addresses, on_link, welcome, clock, options)


def _key(hello: GatewayHello) -> str:
    return hello.gateway


def _name(hello: GatewayHello) -> str:
    return f"gateway {hello.gateway}"
