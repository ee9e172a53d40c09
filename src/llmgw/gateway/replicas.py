"""The replicas that the snapshot routes to: in flight, breaker and connections of each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from llmgw.core.traffic.admission import FairQueue
from llmgw.core.traffic.routing import choose
from llmgw.core.traffic.snapshot import Route, Snapshot, Target
from llmgw.gateway.options import GatewayOptions
from llmgw.gateway.upstream import Pool

if TYPE_CHECKING:
    import asyncio

FAILURES_MAX: Final = 3
OPEN_S_FIRST: Final = 1.0
OPEN_S_MAX: Final = 30.0
RETRY_AFTER_S: Final = 2.0

Identity = tuple[str, int, str, int, str | None]


def _identity(target: Target) -> Identity:
    """What makes it another engine, or another way to it; being confirmed does not."""
    return (target.replica, target.incarnation, target.host, target.port, target.key)


class Breaker:
    """Keeps requests from a replica that fails: closed, open for a while, then one trial.

    Only connections that fail, 5xx and error events count, never what the request itself was to
    blame for, or clients that left.
    """

    __slots__ = ("_failures", "_on_trial", "_open_s", "open_until_s")

    def __init__(self) -> None:
        self._failures = 0
        self._open_s = 0.0
        self._on_trial = False
        self.open_until_s = 0.0
        """0 while closed."""

    def lets_through(self, now_s: float) -> bool:
        """Whether a request may try."""
        return self.open_until_s == 0.0 or (now_s >= self.open_until_s and not self._on_trial)

    def begin(self) -> None:
        """A request tries."""
        self._on_trial = self.open_until_s > 0.0

    def succeeded(self) -> None:
        """The engine answered."""
        self._failures = 0
        self._open_s = self.open_until_s = 0.0
        self._on_trial = False

    def ended_open(self) -> None:
        """Nobody knows: the client left first, or the request was to blame."""
        self._on_trial = False

    def failed(self, now_s: float) -> None:
        """The engine did not answer, or with a failure of its own."""
        self._failures += 1
        if self._failures >= FAILURES_MAX or self._on_trial:
            self._open_s = min(max(self._open_s * 2, OPEN_S_FIRST), OPEN_S_MAX)
            self.open_until_s = now_s + self._open_s
        self._on_trial = False


class Replica:
    """One engine that answers; `models` are those that it answers for."""

    __slots__ = ("breaker", "failures", "in_flight", "models", "pool", "request_head", "target")

    def __init__(self, target: Target, options: GatewayOptions) -> None:
        self.target = target
        self.in_flight = 0
        self.failures: dict[str, int] = {}
        """How often it failed, by the code of the error."""
        self.breaker = Breaker()
        self.models: list[Model] = []
        self.pool = Pool(
            target.host,
            target.port,
            idle_max=options.limits.pooled_max,
            connect_s=options.deadlines.connect_s,
        )
        host = f"[{target.host}]" if ":" in target.host else target.host
        head = f"Host: {host}:{target.port}\r\n"
        if target.key is not None:
            head += f"Authorization: Bearer {target.key}\r\n"
        self.request_head = head.encode()
        """The header lines that every request to it has."""

    def count(self, code: str) -> None:
        """Note a failure."""
        self.failures[code] = self.failures.get(code, 0) + 1

    def has_deputies(self, now_s: float) -> bool:
        """Whether another replica could answer for each of its models."""
        return all(
            any(each is not self and each.breaker.lets_through(now_s) for each in model.replicas)
            for model in self.models
        )


class Model:
    """A model that clients may name, and who waits for it."""

    __slots__ = ("_in_flight_max", "_turn", "queue", "replicas", "route")

    def __init__(self, route: Route, options: GatewayOptions) -> None:
        self.route = route
        self.replicas: tuple[Replica, ...] = ()
        self.queue: FairQueue[asyncio.Future[Replica]] = FairQueue(
            options.limits.waiting_max, RETRY_AFTER_S
        )
        self._in_flight_max = options.limits.in_flight_max
        self._turn = 0

    def pick(self, now_s: float, *, not_in: Sequence[Replica] = ()) -> Replica | None:
        """Take a place at the replica with the most room; None where all are busy or shut."""
        free = [
            index
            for index, replica in enumerate(self.replicas)
            if replica.in_flight < self._in_flight_max
            and replica.breaker.lets_through(now_s)
            and replica not in not_in
        ]
        chosen = choose([self.replicas[i].in_flight for i in free], self._turn_among(free))
        if chosen is None:
            return None
        self._turn = free[chosen] + 1
        replica = self.replicas[free[chosen]]
        replica.in_flight += 1
        replica.breaker.begin()
        return replica

    def _turn_among(self, free: list[int]) -> int:
        return next((k for k, index in enumerate(free) if index >= self._turn), 0)

    def wake(self, now_s: float) -> None:
        """Give free places to those who wait."""
        while len(self.queue) and (replica := self.pick(now_s)):
            waiter = self.queue.next()
            assert waiter is not None
            waiter.set_result(replica)


def leave(replica: Replica, now_s: float) -> None:
    """Give back a place at the replica, for whoever waits for one."""
    replica.in_flight -= 1
    for model in replica.models:
        if len(model.queue):
            model.wake(now_s)


class Replicas:
    """All models and replicas of the obeyed snapshot."""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._models: dict[str, Model] = {}
        self._by_name: dict[str, Model] = {}
        self._replicas: dict[Identity, Replica] = {}
        self._leaving: list[Replica] = []

    def find(self, name: str) -> Model | None:
        """Return the model of that name or alias."""
        return self._by_name.get(name)

    @property
    def models(self) -> Mapping[str, Model]:
        """The models by their own names."""
        return self._models

    @property
    def replicas(self) -> Iterable[Replica]:
        """The replicas that are routed to."""
        return self._replicas.values()

    def obey(self, snapshot: Snapshot, now_s: float) -> None:
        """Route by this snapshot from now on; what runs at a replica that left runs to its end."""
        old_models, self._models, self._by_name = self._models, {}, {}
        old_replicas, self._replicas = self._replicas, {}
        for replica in old_replicas.values():
            replica.models = []
        for route in snapshot.routes:
            model = old_models.get(route.name) or Model(route, self._options)
            model.route = route
            model.replicas = tuple(self._replica(t, old_replicas) for t in route.targets)
            for replica in model.replicas:
                replica.models.append(model)
            self._models[route.name] = model
        for model in self._models.values():
            for alias in model.route.aliases:
                self._by_name[alias] = model
        self._by_name.update(self._models)  # a model's own name beats another's alias
        self._see_off(old_models, old_replicas)
        for model in self._models.values():
            model.wake(now_s)

    def _replica(self, target: Target, old: Mapping[Identity, Replica]) -> Replica:
        key = _identity(target)
        replica = self._replicas.get(key) or old.get(key) or Replica(target, self._options)
        self._replicas[key] = replica
        return replica

    def _see_off(self, models: Mapping[str, Model], replicas: Mapping[Identity, Replica]) -> None:
        for name in models.keys() - self._models.keys():
            models[name].replicas = ()  # who waits for it waits to the deadline
        for key in replicas.keys() - self._replicas.keys():
            replicas[key].pool.close()
            self._leaving.append(replicas[key])
        self._leaving = [replica for replica in self._leaving if replica.in_flight]

    def load(self) -> Mapping[str, int]:
        """Requests in flight per replica id, at those that left, too."""
        load = {replica.target.replica: 0 for replica in self._replicas.values()}
        self._leaving = [replica for replica in self._leaving if replica.in_flight]
        for replica in (*self._replicas.values(), *self._leaving):
            name = replica.target.replica
            load[name] = load.get(name, 0) + replica.in_flight
        return load

    def sweep(self) -> None:
        """Close connections that were not needed since the last time."""
        for replica in self._replicas.values():
            replica.pool.sweep()

    def close(self) -> None:
        """Close all connections that nobody uses."""
        for replica in self._replicas.values():
            replica.pool.close()
