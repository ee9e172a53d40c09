"""What can go wrong on a link, each with a sentence that names the other end or the field."""

from llmgw.core.errors import DependencyError, InvalidRequestError


class LinkLostError(DependencyError):
    """The link has ended, or could not be made; the message says why. Dial again, later."""

    code = "link_lost"


class LinkRefusedError(DependencyError):
    """The control plane was reached and does not take this caller; the message says why."""

    code = "link_refused"

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """When it makes sense to ask again; 0 leaves that to the back-off."""


class CannotListenError(DependencyError):
    """An address cannot be listened on; the message names it."""

    code = "cannot_listen"


class MalformedError(InvalidRequestError):
    """What came over a link is not a message; names the field, never repeats its content."""

    code = "malformed_message"


class UnsendableError(InvalidRequestError):
    """A message that no link can carry; it was not sent, and the link lives on."""

    code = "unsendable_message"
