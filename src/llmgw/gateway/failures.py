"""How an engine fails a request: one class for each way, since each asks for something else."""

from llmgw.core.errors import UpstreamFailedError


class ConnectFailedError(UpstreamFailedError):
    """Nobody accepted the connection: the engine has done no work."""

    code = "upstream_unreachable"


class KeyRefusedError(UpstreamFailedError):
    """The engine does not take our key: the route is stale, or the key is wrong."""

    code = "upstream_key_refused"


class RedirectedError(UpstreamFailedError):
    """The engine names another address; who followed that would go round the gateway."""

    code = "upstream_redirected"


class NotReadyError(UpstreamFailedError):
    """The engine says that it does not serve yet, or no more."""

    code = "upstream_not_ready"


class StaleConnectionError(UpstreamFailedError):
    """The connection was closed by the engine before a byte of the answer."""

    code = "upstream_closed"


class BrokenOffError(UpstreamFailedError):
    """The answer ended in the midst of itself."""

    code = "upstream_broke_off"


class SilentError(UpstreamFailedError):
    """The engine said nothing for longer than it may."""

    code = "upstream_silent"
