"""A clock that a test moves: sleepers wake when it is advanced, and only then."""

import asyncio


class ManualClock:
    """A runtime.clock.Clock; both times move together, and wall time may step."""

    def __init__(self, *, monotonic_s: float = 1_000.0, wall_s: float = 1_800_000_000.0) -> None:
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic_s(self) -> float:
        """See Clock."""
        return self._monotonic_s

    def wall_s(self) -> float:
        """See Clock."""
        return self._wall_s

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has advanced the clock by that much."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        sleeper = (self._monotonic_s + seconds, future)
        self._sleepers.append(sleeper)
        try:
            await future
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        """Let time pass; whoever's sleep is over by then goes on."""
        self._monotonic_s += seconds
        self._wall_s += seconds
        for due_s, future in self._sleepers:
            if due_s <= self._monotonic_s and not future.done():
                future.set_result(None)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or an administrator does."""
        self._wall_s += seconds

    @property
    def sleepers(self) -> int:
        """How many wait."""
        return len(self._sleepers)
