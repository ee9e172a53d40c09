"""A ledger record while its request runs: the running meter, right at every moment."""

import msgspec

from llmgw.core.traffic.tokens import Tokens
from llmgw.core.traffic.usage import Ending


class Entry(msgspec.Struct):
    """The fields of core.traffic.usage.Usage, changing as bytes pass.

    It begins as what is true if the gateway dies this moment: of unknown end, and estimated.
    """

    request: str
    opened_wall_s: float
    key: str
    account: str
    path: str
    model: str = ""
    ending: Ending = Ending.UNKNOWN
    status: int = 0
    replica: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = True
    streamed: bool = False
    duration_s: float = 0.0
    first_byte_s: float | None = None

    def guess_prompt(self, tokens: int) -> None:
        """Take a guess until the engine says."""
        self.prompt_tokens = tokens
        self.estimated = True

    def add_guess(self, tokens: int = 1) -> None:
        """Something that the model wrote has passed; how many tokens the engine has not said."""
        self.completion_tokens += tokens
        self.estimated = True

    def take(self, tokens: Tokens) -> None:
        """The engine says how many there were so far; the last word counts."""
        self.prompt_tokens = tokens.prompt
        self.completion_tokens = tokens.completion
        self.cached_tokens = tokens.cached
        self.estimated = False

    def took_nothing(self) -> None:
        """No engine has done any work for it."""
        self.take(Tokens(0, 0))
