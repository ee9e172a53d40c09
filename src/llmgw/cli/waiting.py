"""Waits, up to a deadline, until what runs is what was asked for, and shows how far it is."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from llmgw.admin.client import AdminClient
from llmgw.admin.errors import AdminUnreachableError
from llmgw.admin.schema import ModelInfo, ProfileInfo, ReplicaInfo, ShardInfo, Status
from llmgw.cli.exits import DeadlinePassedError
from llmgw.cli.output import span
from llmgw.cli.screen import Row, Screen
from llmgw.runtime.clock import Clock

LOOK_S: Final = 0.5
PUBLISH_S_MAX: Final = 5.0
SOON_S: Final = 0.05
READY: Final = "ready"
FAILED: Final = "failed"
RUN: Final = "run"


@dataclass(frozen=True, slots=True)
class Picture:
    """What the control plane shows at one moment."""

    status: Status
    models: tuple[ModelInfo, ...]
    replicas: tuple[ReplicaInfo, ...]

    def is_as_wanted(self, revision: int) -> bool:
        """Whether all that the catalog of that revision, or a later one, asks for is ready."""
        if self.status.catalog_revision < revision or self.status.hold:
            return False
        return all(p.ready == p.replicas and not p.why for p in self.profiles) and all(
            r.phase == READY and r.wanted == RUN for r in self.replicas
        )

    @property
    def profiles(self) -> tuple[ProfileInfo, ...]:
        """All profiles of all models."""
        return tuple(profile for model in self.models for profile in model.profiles)

    def rows(self) -> tuple[Row, ...]:
        """Return what a person wants to see of it."""
        rows = [_row(replica) for replica in self.replicas]
        rows += [
            Row("", profile.profile, "", "missing", profile.why)
            for profile in self.profiles
            if profile.why and not any(r.profile == profile.profile for r in self.replicas)
        ]
        if self.status.hold:
            rows.append(Row("", "everything", "", "waiting", self.status.hold))
        return tuple(rows)

    def missing(self) -> str:
        """Say what is not as it is wanted."""
        late = [row for row in self.rows() if row.phase != READY]
        said = [f"{r.profile} {r.name}".rstrip() + f": {r.phase}, {r.why}" for r in late]
        return "\n".join(f"  {line}" for line in said)


async def look(client: AdminClient) -> Picture:
    """Ask for a picture; first for the revision, so that the rest is of that one or a later."""
    status = await client.status()
    return Picture(status, await client.models(), await client.replicas())


async def watch(
    client: AdminClient,
    is_done: Callable[[Picture], bool],
    within_s: float,
    screen: Screen,
    clock: Clock,
    ctl: str = "llmgw ctl",
) -> None:
    """Look again and again until it is done; raise DeadlinePassedError.

    A control plane that does not answer for a while is waited for: it may be restarting.
    """
    deadline_s = clock.monotonic_s() + within_s
    missing = "the control plane has not answered"
    try:
        async with asyncio.timeout(within_s):
            with screen:
                while True:
                    try:
                        picture = await look(client)
                    except AdminUnreachableError as error:
                        missing = f"  {error}"
                        screen.trouble(str(error))
                    else:
                        done = is_done(picture)
                        left_s = max(deadline_s - clock.monotonic_s(), 0.0)
                        screen.show(picture.rows(), "" if done else f"{span(left_s)} left")
                        if done:
                            return
                        missing = picture.missing()
                    await clock.sleep(LOOK_S)
    except TimeoutError:
        raise DeadlinePassedError(
            f"not done after {span(within_s)}; it goes on, see `{ctl} status`:\n{missing}"
        ) from None


async def until_gateways_know(
    client: AdminClient, before: tuple[int, int] | None, clock: Clock
) -> bool:
    """Wait a moment until gateways act on a snapshot later than `before`; False if they do not.

    Without this, a key that was just made may be refused by a request that is quick enough.
    """
    deadline_s = clock.monotonic_s() + PUBLISH_S_MAX
    while clock.monotonic_s() < deadline_s:
        status = await client.status()
        published = status.snapshot
        if published is not None and (before is None or published > before):
            late = [g for g in status.gateways if g.linked and (g.term, g.revision) < published]
            if not late:
                return True
        await clock.sleep(SOON_S)
    return False


def _row(replica: ReplicaInfo) -> Row:
    behind = _furthest_behind(replica)
    last = ""
    # Why it failed was made from its last words.
    if behind is not None and replica.phase not in {READY, FAILED}:
        last = _words(behind.last_log)
    if last in replica.why:
        last = ""
    name = f"{replica.replica}.{replica.incarnation}"
    return Row(name, replica.profile, ",".join(replica.nodes), replica.phase, replica.why, last)


def _words(log_line: str) -> str:
    """Return a line of a shard's log without its stamp and the name of its command."""
    return log_line.split("| ", 1)[-1].strip()


def _furthest_behind(replica: ReplicaInfo) -> ShardInfo | None:
    """Return the shard that the replica waits for: what it writes is worth reading."""
    late = (shard for shard in replica.shards if shard.phase not in {READY, "alive"})
    return next(late, replica.shards[0] if replica.shards else None)
