"""How long to wait before the next try: exponential, capped, with jitter."""

from dataclasses import dataclass

from llmgw.runtime.clock import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """The longest wait grows from `first_s` to `cap_s`; each wait is drawn from its upper half.

    The half that is certain keeps a failing peer from being asked at once; the half that is drawn
    keeps many that failed together from coming back together.
    """

    first_s: float
    cap_s: float
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.cap_s or self.factor < 1:
            raise ValueError(f"a back-off grows from above zero to its cap, not as {self}")

    def longest_s(self, failures: int) -> float:
        """The longest wait after that many failures in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        wait_s = self.first_s
        for _ in range(failures - 1):
            wait_s *= self.factor
            if wait_s >= self.cap_s or self.factor == 1:
                return min(wait_s, self.cap_s)
        return wait_s

    def wait_s(self, failures: int, random: Random) -> float:
        """Draw the wait after that many failures in a row."""
        return self.longest_s(failures) * random.uniform(0.5, 1.0)
