"""decide(): compare what is wanted with what is known and name every difference. Performs nothing.

One immutable View goes in, one immutable Decision comes out, each part with a why. The order of the
steps: settle (adopt before acting), judge every replica (failed, lost, drained, gone), remove what
is too much, then place what is missing: first the next incarnations, then new replicas. A decision
is saved before anything of it is sent; deciding again on the same view changes nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from llmgw.core.fleet.adopt import Stray, adopted, unplanned
from llmgw.core.fleet.catalog import Model, Profile, runs_the_same
from llmgw.core.fleet.decision import (
    WAKE_S_MAX,
    Decision,
    Duty,
    Happened,
    ReplicaStatus,
    RouteTo,
    Shortfall,
)
from llmgw.core.fleet.drain import Drained, drained
from llmgw.core.fleet.intent import FAILURES_KEPT, Intent, Remains, Wanted
from llmgw.core.fleet.placement import NoRoom, Placement, Request, Room, place
from llmgw.core.fleet.replica import (
    Seen,
    is_gone,
    is_serving,
    lost_in_s,
    phase_of,
    seen,
    why_failed,
    why_lost,
)
from llmgw.core.fleet.restart import Failure, wait_after
from llmgw.core.fleet.rooms import grant, rooms
from llmgw.core.fleet.view import ENDED, Planner, View
from llmgw.core.ids import NodeId, ReplicaId, ShardKey

EXPECTED: Final = "waiting for a node to report; this control plane has only just begun to lead"


def decide(view: View, now_wall_s: float, plan: Planner) -> Decision:
    """Return what brings the fleet to what is wanted, in a stable order."""
    turn = _Turn(view, now_wall_s, plan)
    if hold := _hold(view, adopts=bool(turn.unplanned)):
        return Decision(statuses=turn.statuses(), hold=hold, wake_s=1.0)
    turn.adopt()
    turn.judge()
    turn.remove()
    turn.place()
    return turn.decision()


def _hold(view: View, *, adopts: bool) -> str:
    if view.stored and not adopts:
        return ""
    quiet = sorted(n.name for n in view.nodes.values() if n.report is None)
    if not quiet or view.age_s >= view.rules.settle_s:
        return ""
    left_s = view.rules.settle_s - view.age_s
    cause = "runs without a store" if not view.stored else "has met replicas it does not know"
    return (
        f"this control plane {cause}: it starts and stops nothing until {', '.join(quiet)} "
        f"reported, or for {left_s:.0f} s more"
    )


class _Turn:
    """The working state of one decide(); nothing of it survives."""

    def __init__(self, view: View, now_wall_s: float, plan: Planner) -> None:
        self.view = view
        self.now = now_wall_s
        self.plan = plan
        self.intents: dict[ReplicaId, Intent] = dict(sorted(view.intents.items()))
        self.models = {m.name: m for m in view.catalog.models}
        self.wanted = {p.name: (m, p) for m, p in view.catalog.wanted()}
        self.unplanned = unplanned(view)
        self.strays: list[Stray] = []
        self.happened: list[Happened] = []
        self.shortfalls: list[Shortfall] = []
        self.waits: dict[ReplicaId, str] = {}
        self.wake_s = WAKE_S_MAX
        self.brake = ""
        self.fresh = iter(view.fresh_ids)

    # -- adopting

    def adopt(self) -> None:
        for id_, shards in self.unplanned.items():
            missing = {
                name: p.replicas - self._count(name, id_) for name, (_, p) in self.wanted.items()
            }
            intent = adopted(shards, self.view.catalog, self.plan, missing)
            if isinstance(intent, Intent):
                self._save(intent, "was found running and taken over")
            elif id_ not in self.view.intents:
                self.strays.append(Stray(id_, shards, intent))

    def _count(self, profile: str, besides: ReplicaId) -> int:
        return sum(
            intent.placement.profile.name == profile
            for id_, intent in self.intents.items()
            if intent.wanted is Wanted.RUN and id_ != besides
        )

    # -- judging what is there

    def judge(self) -> None:
        for id_, before in list(self.intents.items()):
            intent = self._with_remains_checked(before)
            parts = seen(intent, self.view)
            if not intent.reported and any(part.report for part in parts):
                intent = replace(intent, reported=True)
            if intent.wanted is Wanted.DRAIN:
                intent = self._judge_drain(intent, parts)
            elif intent.wanted is Wanted.RUN and not intent.failed:
                intent = self._judge_run(intent, parts)
            self.intents[id_] = intent
            stopped = all(is_gone(intent, part) for part in parts) and not intent.remains
            if intent.wanted is Wanted.STOP and stopped:
                del self.intents[id_]
                self.happened.append(Happened(id_, f"stopped: {intent.why}"))

    def _judge_run(self, intent: Intent, parts: tuple[Seen, ...]) -> Intent:
        policy = self._policy(intent)
        if failure := why_failed(intent, parts, policy):
            return self._fail(intent, parts, *failure)
        lost = why_lost(policy, parts)
        if lost and (brake := _brake(self.view)):
            self.brake = brake
            self.waits[intent.replica] = f"{lost}; not replaced: {brake}"
        elif lost:
            return self._fail(intent, parts, lost, ())
        elif (left_s := lost_in_s(policy, parts)) is not None:
            self._wake_in(left_s)
        return intent

    def _fail(
        self, intent: Intent, parts: tuple[Seen, ...], why: str, ports: tuple[int, ...]
    ) -> Intent:
        incarnation = intent.placement.incarnation
        ready_s = self.view.ready_s.get(intent.replica, 0.0)
        failure = Failure(incarnation, why, self.now, ready_s, ports)
        quiet = tuple(
            Remains(part.shard.node, incarnation) for part in parts if part.node and not part.heard
        )
        self.happened.append(Happened(intent.replica, f"incarnation {incarnation} failed: {why}"))
        failures = (*intent.failures, failure)[-FAILURES_KEPT:]
        return replace(intent, failures=failures, remains=intent.remains + quiet)

    def _judge_drain(self, intent: Intent, parts: tuple[Seen, ...]) -> Intent:
        if failure := why_failed(intent, parts, self._policy(intent)):
            self.happened.append(Happened(intent.replica, f"ended while it drained: {failure[0]}"))
            return replace(intent, wanted=Wanted.STOP)
        verdict = drained(intent, parts, self.view, self._policy(intent))
        if isinstance(verdict, Drained):
            if verdict.cuts:
                what = f"stopped with {verdict.cuts} requests in flight: {verdict.why}"
                self.happened.append(Happened(intent.replica, what))
            return replace(intent, wanted=Wanted.STOP)
        self.waits[intent.replica] = f"{intent.why}; {verdict.why}"
        self._wake_in(verdict.left_s)
        return intent

    def _with_remains_checked(self, intent: Intent) -> Intent:
        left = tuple(r for r in intent.remains if not self._is_cleared(intent.replica, r))
        return replace(intent, remains=left) if left != intent.remains else intent

    def _is_cleared(self, replica: ReplicaId, remains: Remains) -> bool:
        node = self.view.nodes.get(remains.node)
        if node is None:
            return True
        if not node.heard or node.report is None:
            return False
        return not any(
            s.key.replica == replica and s.key.incarnation == remains.incarnation
            for s in node.report.shards
            if s.phase not in ENDED
        )

    # -- removing

    def remove(self) -> None:
        for id_ in sorted(self.view.condemned & self.intents.keys()):
            self._drain(self.intents[id_], "an operator stopped it")
        for id_, intent in list(self.intents.items()):
            if intent.wanted is Wanted.RUN and (why := self._why_unwanted(intent)):
                self._drain(self.intents[id_], why)
        for name, (model, profile) in self.wanted.items():
            self._trim(name, model, profile)

    def _why_unwanted(self, intent: Intent) -> str:
        name = intent.placement.profile.name
        model = self.models.get(intent.placement.model)
        if model is None:
            return f"model {intent.placement.model} left the catalog"
        if name not in self.wanted or self.wanted[name][0] is not model:
            return f"profile {name} left the catalog"
        return ""

    def _trim(self, name: str, model: Model, profile: Profile) -> None:
        current, outdated = self._of(name, model, profile)
        serving = [i for i in current if is_serving(seen(i, self.view))]
        for intent in _least_useful(current, self.view)[: max(len(current) - profile.replicas, 0)]:
            self._drain(intent, _wants(profile))
        # Outdated ones go as fast as current ones take over, and at once where they do not serve.
        keep = max(profile.replicas - len(serving), 0)
        useful = [i for i in outdated if _may_be_routed(seen(i, self.view))]
        order = _least_useful(useful, self.view)
        for intent in [i for i in outdated if i not in useful] + order[: max(len(order) - keep, 0)]:
            self._drain(intent, f"profile {name} has changed")

    def _of(self, name: str, model: Model, profile: Profile) -> tuple[list[Intent], list[Intent]]:
        """Return the wanted replicas of a profile: those that run as it says, and the others."""
        current: list[Intent] = []
        outdated: list[Intent] = []
        for intent in self.intents.values():
            if intent.wanted is Wanted.RUN and intent.placement.profile.name == name:
                same = intent.placement.served_names == model.served_names and runs_the_same(
                    profile, intent.placement.profile
                )
                # A failed one is started anew as the profile now says: it is current by then.
                (current if same or intent.failed else outdated).append(intent)
        return current, outdated

    def _drain(self, intent: Intent, why: str) -> None:
        if intent.wanted is not Wanted.RUN:
            return
        wanted = Wanted.DRAIN if _may_be_routed(seen(intent, self.view)) else Wanted.STOP
        changed = replace(intent, wanted=wanted, why=why, drain_since_wall_s=self.now)
        self._save(changed, f"is removed: {why}")

    # -- placing

    def place(self) -> None:
        left = rooms(self.view, self.intents.values())
        for intent in list(self.intents.values()):
            if intent.wanted is Wanted.RUN and intent.failed:
                self._place_next(intent, left)
        for name, (model, profile) in self.wanted.items():
            current, outdated = self._of(name, model, profile)
            missing = profile.replicas - len(current)
            for number in range(missing):
                if why := self._place_new(model, profile, left):
                    self._fall_short(name, missing - number, why, outdated)
                    break

    def _place_next(self, intent: Intent, left: dict[NodeId, Room]) -> None:
        policy = self._policy(intent)
        ago_s = self.view.ages.get((intent.replica, intent.failures[-1].at_wall_s), 0.0)
        wait = wait_after(intent.failures, policy.restart, ago_s)
        alive = [p for p in seen(intent, self.view) if p.heard and not is_gone(intent, p)]
        if alive:
            self.waits[intent.replica] = f"{wait.why}; waits for its shards to end"
            return
        if wait.seconds > 0:
            self.waits[intent.replica] = f"{wait.why}; starts anew in {wait.seconds:.0f} s"
            self._wake_in(wait.seconds)
            return
        model = self.models[intent.placement.model]
        avoided = frozenset(port for f in intent.failures for port in f.ports)
        request = Request(
            intent.replica, self._next(intent), model.name, model.served_names, policy, avoided
        )
        placed = self._plan(request, left)
        if isinstance(placed, str):
            self.waits[intent.replica] = f"{wait.why}; {placed}"
            return
        grant(left, placed)
        self._save(
            replace(intent, placement=placed, reported=False, why=wait.why),
            f"starts incarnation {placed.incarnation}: {wait.why}",
        )

    def _place_new(self, model: Model, profile: Profile, left: dict[NodeId, Room]) -> str:
        """Place one more replica; return why not, or nothing."""
        replica = next(self.fresh, None)
        if replica is None:
            self._wake_in(0.0)
            return "as many as fit one decision were placed; the next one goes on"
        request = Request(replica, 1, model.name, model.served_names, profile)
        placed = self._plan(request, left)
        if isinstance(placed, str):
            return placed
        grant(left, placed)
        self._save(Intent(placed, why=_wants(profile)), "is new")
        return ""

    def _plan(self, request: Request, left: Mapping[NodeId, Room]) -> Placement | str:
        placed = place(request, tuple(left.values()))
        if isinstance(placed, NoRoom):
            early = not placed.in_the_way and self.view.age_s < self.view.rules.settle_s
            return EXPECTED if early else placed.why
        planned = self.plan(placed)
        return planned if isinstance(planned, str) else placed

    def _fall_short(self, name: str, missing: int, why: str, outdated: list[Intent]) -> None:
        """Note what is missing; an outdated replica makes room where the profile allows that."""
        model, profile = self.wanted[name]
        serving = [i for i in self.intents.values() if self._serves(i, name)]
        spare = len(serving) - (profile.replicas - profile.missing_max)
        for intent in _least_useful(outdated, self.view)[: max(min(spare, missing), 0)]:
            self._drain(intent, f"profile {name} has changed and there is no room beside it")
        if outdated and spare <= 0:
            why += "; a change needs room beside what runs, or missing_max above 0"
        self.shortfalls.append(Shortfall(name, model.name, missing, why))

    def _serves(self, intent: Intent, profile: str) -> bool:
        ours = intent.wanted is Wanted.RUN and intent.placement.profile.name == profile
        return ours and is_serving(seen(intent, self.view))

    def _next(self, intent: Intent) -> int:
        known = [intent.placement.incarnation, *(f.incarnation for f in intent.failures)]
        for node in self.view.nodes.values():
            shards = node.report.shards if node.report else ()
            known += [s.key.incarnation for s in shards if s.key.replica == intent.replica]
        return max(known) + 1

    # -- what comes of it

    def decision(self) -> Decision:
        before = self.view.intents
        saves = tuple(i for id_, i in sorted(self.intents.items()) if before.get(id_) != i)
        return Decision(
            saves,
            tuple(sorted(before.keys() - self.intents.keys())),
            self._duties(),
            self._routes(),
            self.statuses(),
            tuple(self.shortfalls),
            tuple(self.strays),
            tuple(self.happened),
            brake=self.brake,
            wake_s=self.wake_s,
        )

    def _duties(self) -> dict[NodeId, Duty]:
        shards: dict[NodeId, Duty] = {}
        for intent in self.intents.values():
            if intent.wanted is Wanted.STOP or (intent.wanted is Wanted.RUN and intent.failed):
                continue
            planned = self.plan(intent.placement)
            if isinstance(planned, str):
                self.happened.append(Happened(intent.replica, f"cannot be planned: {planned}"))
                continue
            for shard, spec in zip(intent.placement.shards, planned, strict=True):
                there = shards.get(shard.node, Duty())
                shards[shard.node] = replace(there, shards=(*there.shards, spec))
        keep: dict[NodeId, list[ShardKey]] = {}
        for stray in self.strays:
            if stray.replica not in self.view.condemned:
                for found in stray.shards:
                    keep.setdefault(found.node, []).append(found.key)
        return {
            id_: replace(shards.get(id_, Duty()), keep=tuple(keep.get(id_, ())))
            for id_, node in sorted(self.view.nodes.items())
            if node.heard
        }

    def _routes(self) -> tuple[RouteTo, ...]:
        found = []
        for intent in self.intents.values():
            parts = seen(intent, self.view)
            if intent.wanted is Wanted.RUN and not intent.failed and _may_be_routed(parts):
                head = parts[0].report
                found.append(
                    RouteTo(
                        intent.placement.model,
                        intent.replica,
                        intent.placement.incarnation,
                        intent.placement.head.address,
                        intent.placement.head.port,
                        intent.placement.profile.engine,
                        keyed=head.keyed if head else self.view.stored,
                        confirmed=is_serving(parts),
                    )
                )
        return tuple(found)

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        found = []
        for id_, intent in sorted(self.intents.items()):
            parts = seen(intent, self.view)
            phase, why = phase_of(intent, parts)
            placement = intent.placement
            found.append(
                ReplicaStatus(
                    id_,
                    placement.model,
                    placement.profile.name,
                    placement.incarnation,
                    phase,
                    self.waits.get(id_, why),
                    tuple(part.node.name if part.node else part.shard.node for part in parts),
                    len(intent.failures),
                )
            )
        return tuple(found)

    def _policy(self, intent: Intent) -> Profile:
        profile = intent.placement.profile
        return self.wanted[profile.name][1] if profile.name in self.wanted else profile

    def _save(self, intent: Intent, what: str) -> None:
        self.intents[intent.replica] = intent
        self.happened.append(Happened(intent.replica, what))

    def _wake_in(self, seconds: float) -> None:
        self.wake_s = max(min(self.wake_s, seconds), 0.05)


def _wants(profile: Profile) -> str:
    return f"{profile.name} wants {profile.replicas} replica{'' if profile.replicas == 1 else 's'}"


def _may_be_routed(parts: tuple[Seen, ...]) -> bool:
    """Tell whether requests may go there: it serves, or nobody can say yet that it does not."""
    return is_serving(parts) or any(part.node and part.node.report is None for part in parts)


def _least_useful(intents: list[Intent], view: View) -> list[Intent]:
    """Order by how little is lost when one goes: failed, starting, serving; newest first."""

    def usefulness(intent: Intent) -> tuple[bool, bool, float, ReplicaId]:
        serving = is_serving(seen(intent, view))
        return (not intent.failed, serving, view.ready_s.get(intent.replica, 0.0), intent.replica)

    return sorted(intents, key=usefulness)


def _brake(view: View) -> str:
    silent = [n for n in view.nodes.values() if not n.heard]
    allowed = max(1, math.floor(view.rules.brake_share * len(view.nodes)))
    if len(silent) <= allowed and len(silent) < len(view.nodes):
        return ""
    return f"{len(silent)} of {len(view.nodes)} nodes are silent at once"
