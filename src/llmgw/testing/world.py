"""The pure core under a virtual clock, with every fault drawn from a seed.

A World has nodes with agents and engines, links that lose, delay and repeat, a control plane that
crashes, and a store. It runs the real decide(), difference() and next_phase(); everything around
them is a model of a few lines. After every step it checks what must always hold.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from llmgw.core.fleet.ages import Ages
from llmgw.core.fleet.assignment import Assignment, ShardSpec, difference
from llmgw.core.fleet.catalog import Catalog, OnSilence
from llmgw.core.fleet.decision import Decision
from llmgw.core.fleet.reconcile import decide
from llmgw.core.fleet.report import Report, ShardReport
from llmgw.core.fleet.shard import (
    Event,
    Exited,
    LoadingSeen,
    Phase,
    ProbePassed,
    RendezvousOpen,
    StopWanted,
    next_phase,
)
from llmgw.core.fleet.view import ENDED, NodeView, Rules, View
from llmgw.core.ids import NodeId, ReplicaId, ShardKey
from llmgw.testing.fleet import PLAN, catalog, inventory, profile

if TYPE_CHECKING:
    from llmgw.core.fleet.intent import Intent

RUNS: Final = frozenset({Phase.STARTING, Phase.LOADING, Phase.READY, Phase.STOPPING})
LOST_AFTER_S: Final = 20.0


@dataclass(slots=True)
class Shard:
    """One shard's directory and processes; both outlive the agent."""

    spec: ShardSpec
    phase: Phase
    why: str = ""


@dataclass(slots=True)
class Link:
    """One life of a stream: two ordered queues."""

    number: int
    up: deque[Report] = field(default_factory=deque)
    down: deque[Assignment] = field(default_factory=deque)


@dataclass(slots=True)
class Node:
    """A machine: what is on its disk, what runs, and its agent's memory while that lives."""

    name: NodeId
    shards: dict[ShardKey, Shard] = field(default_factory=dict)
    up: bool = True
    reachable: bool = True
    link: Link | None = None
    assignment: Assignment | None = None
    generation: int = 0
    term: int = 0
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Control:
    """A control plane's memory; gone when it crashes."""

    term: int
    started_s: float
    reports: dict[NodeId, Report] = field(default_factory=dict)
    links: dict[NodeId, int] = field(default_factory=dict)
    heard_s: dict[NodeId, float] = field(default_factory=dict)
    sent: dict[NodeId, dict[int, frozenset[ShardKey]]] = field(default_factory=dict)
    last: dict[NodeId, tuple[object, object]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    ages: Ages = field(default_factory=Ages)


class BrokenWorldError(AssertionError):
    """Something happened that must never happen; carries the story."""


class World:
    """Nodes, links, one store, at most one control plane; `step` lets something happen."""

    def __init__(self, seed: int, nodes: int = 4, *, stored: bool = True) -> None:
        self.rng = random.Random(seed)
        self.now_s = 1000.0
        self.wall_step_s = 0.0
        self.stored = stored
        self.catalog = catalog(
            profile("a", replicas=2),
            profile("b", replicas=2, memory_share=0.5),
            profile("c", on_silence=OnSilence.REPLACE, lost_after_s=LOST_AFTER_S),
        )
        self.store: dict[ReplicaId, Intent] = {}
        self.term = 0
        self.nodes = {n: Node(n) for n in (NodeId(f"n{i}") for i in range(nodes))}
        self.control: Control | None = None
        self.decision = Decision()
        self.link_numbers = 0
        self.starts: Counter[ShardKey] = Counter()
        self.story: deque[str] = deque(maxlen=400)
        self.ids = 0

    # -- what may happen

    def step(self) -> None:
        """Let one thing happen, then check."""
        happenings = (
            (30, self.tick),
            (30, self.deliver),
            (20, self.engine_goes_on),
            (20, self.control_decides),
            (3, self.engine_dies),
            (3, self.agent_dies),
            (4, self.link_breaks),
            (3, self.cut),
            (6, self.heal),
            (2, self.control_dies),
            (2, self.reboot),
            (2, self.edit),
            (1, self.clock_steps),
        )
        weights = [weight for weight, _ in happenings]
        self.rng.choices([happening for _, happening in happenings], weights)[0]()
        self.check()

    def calm(self) -> None:
        """End all faults and let everything run until it has had time to settle."""
        for node in self.nodes.values():
            node.up = node.reachable = True
        for _ in range(700):
            self.now_s += 1.0
            for node in self.nodes.values():
                self._agent_turn(node)
                self._take_up(node)
                self._agent_turn(node)
            self.control_decides()
            for node in self.nodes.values():
                self._take_down(node)
                for key in list(node.shards):
                    self._go_on(node, key)
            self.check()

    def tick(self) -> None:
        """Time passes."""
        self.now_s += self.rng.choice([0.1, 1.0, 5.0])

    def deliver(self) -> None:
        """A message arrives, or an agent acts."""
        node = self.rng.choice(list(self.nodes.values()))
        action = self.rng.choice([self._take_up, self._take_down, self._agent_turn])
        action(node)

    def engine_goes_on(self) -> None:
        """A shard makes progress."""
        node = self.rng.choice(list(self.nodes.values()))
        if node.shards:
            self._go_on(node, self.rng.choice(sorted(node.shards)))

    def engine_dies(self) -> None:
        """An engine ends without being asked."""
        node = self.rng.choice(list(self.nodes.values()))
        alive = sorted(k for k, s in node.shards.items() if s.phase in RUNS)
        if alive:
            key = self.rng.choice(alive)
            self._event(node, key, Exited(1), "the engine ended with status 1")

    def agent_dies(self) -> None:
        """An agent is killed; runners and engines go on."""
        node = self.rng.choice(list(self.nodes.values()))
        node.up = False
        self._unlink(node)
        self.story.append(f"agent {node.name} dies")

    def link_breaks(self) -> None:
        """A stream ends; what was in it is lost."""
        node = self.rng.choice(list(self.nodes.values()))
        self._unlink(node)
        self.story.append(f"link of {node.name} breaks")

    def cut(self) -> None:
        """A node cannot be reached; its stream hangs."""
        self.rng.choice(list(self.nodes.values())).reachable = False

    def heal(self) -> None:
        """A node is back in every way."""
        node = self.rng.choice(list(self.nodes.values()))
        node.up = node.reachable = True

    def control_dies(self) -> None:
        """The control plane is killed; another starts at the next chance."""
        self.control = None
        for node in self.nodes.values():
            self._unlink(node)
        if not self.stored:
            self.store = {}
        self.story.append("control dies")

    def reboot(self) -> None:
        """A machine restarts: no process survives, directories do."""
        node = self.rng.choice(list(self.nodes.values()))
        self.story.append(f"{node.name} reboots")
        for key, shard in node.shards.items():
            if shard.phase not in ENDED:
                self._end(node, key, "the machine restarted")
        self._unlink(node)

    def edit(self) -> None:
        """An operator changes the catalog."""
        models = self.catalog.models[0]
        chosen = self.rng.randrange(len(models.profiles))
        changed = []
        for i, old in enumerate(models.profiles):
            new = old
            if i == chosen:
                kind = self.rng.randrange(3)
                if kind == 0:
                    new = replace(old, replicas=self.rng.randrange(3))
                elif kind == 1:
                    new = replace(old, context_tokens=self.rng.choice([1024, 2048]))
                else:
                    new = replace(old, missing_max=self.rng.randrange(2))
            changed.append(new)
        model = replace(models, profiles=tuple(changed))
        self.catalog = Catalog((model,), self.catalog.revision + 1)
        self.story.append(f"edit: {[(p.name, p.replicas, p.context_tokens) for p in changed]}")

    def clock_steps(self) -> None:
        """The wall clock jumps; monotonic clocks do not."""
        self.wall_step_s += self.rng.choice([-3600.0, 3600.0])

    # -- the control plane

    def control_decides(self) -> None:
        """The control plane starts if there is none, then decides, saves and sends."""
        if self.control is None:
            self.term += 1
            self.control = Control(self.term, self.now_s)
            self.story.append(f"control starts with term {self.term}")
        control = self.control
        self._judge_links(control)
        view = self._view(control)
        decision = decide(view, self.now_s + self.wall_step_s, PLAN)
        again = decide(view, self.now_s + self.wall_step_s, PLAN)
        self._require(decision == again, "decide() gave two answers for one view")
        self.decision = decision
        for intent in decision.saves:
            self.store[intent.replica] = intent
        for replica in decision.forgets:
            del self.store[replica]
        for what in decision.happened:
            self.story.append(f"{self.now_s:.1f} {what.subject}: {what.what}")
        if decision.hold:
            return
        for id_, duty in decision.duties.items():
            node = self.nodes[id_]
            linked = node.link is not None and node.link.number == control.links.get(id_)
            if linked and node.link and control.last.get(id_) != (node.link.number, duty):
                sent = control.sent[id_]
                generation = max(sent, default=0) + 1
                sent[generation] = frozenset(s.key for s in duty.shards)
                assignment = Assignment(control.term, generation, duty.shards, {}, duty.keep)
                node.link.down.append(assignment)
                control.last[id_] = (node.link.number, duty)

    def _judge_links(self, control: Control) -> None:
        for id_, number in list(control.links.items()):
            node = self.nodes[id_]
            broken = node.link is None or node.link.number != number
            quiet = self.now_s - control.heard_s.get(id_, control.started_s) > 8.0
            if broken or quiet:
                del control.links[id_]
                control.closed.add(number)

    def _view(self, control: Control) -> View:
        nodes = {}
        for id_ in self.nodes:
            report = control.reports.get(id_)
            linked = id_ in control.links
            silent_s = 0.0
            if not linked:
                silent_s = self.now_s - control.heard_s.get(id_, control.started_s)
            pending: frozenset[ShardKey] = frozenset()
            if linked and report is not None:
                later = [k for g, k in control.sent[id_].items() if g > report.generation]
                pending = frozenset().union(*later)
            nodes[id_] = NodeView(id_, id_, report, linked, silent_s, pending)
        fresh = []
        for _ in range(8):
            self.ids += 1
            fresh.append(ReplicaId(f"r{self.ids}"))
        return View(
            self.catalog,
            dict(self.store),
            nodes,
            age_s=self.now_s - control.started_s,
            stored=self.stored,
            rules=Rules(settle_s=30.0),
            ages=control.ages.of(self.store.values(), self.now_s, self.now_s + self.wall_step_s),
            fresh_ids=tuple(fresh),
        )

    # -- links

    def _unlink(self, node: Node) -> None:
        """End a node's link: an assignment ends with the link that it came by."""
        node.link, node.assignment, node.generation = None, None, 0
        node.refused = {}

    def _take_up(self, node: Node) -> None:
        control, link = self.control, node.link
        if control is None or link is None or not link.up or not node.reachable:
            return
        if link.number in control.closed:
            self._unlink(node)
            return
        report = link.up.popleft()
        if control.links.get(node.name) != link.number:
            control.links[node.name] = link.number
            control.sent[node.name] = {}
            control.last.pop(node.name, None)
        control.reports[node.name] = report
        control.heard_s[node.name] = self.now_s

    def _take_down(self, node: Node) -> None:
        link = node.link
        if link is None or not link.down or not node.reachable or not node.up:
            return
        assignment = link.down.popleft()
        if self.rng.random() < 0.2:
            link.down.appendleft(assignment)  # repeated: sending again is always safe
        if assignment.term < node.term or assignment.generation < node.generation:
            return
        node.term, node.assignment = assignment.term, assignment
        node.generation = assignment.generation
        self._agent_turn(node)

    # -- the agent

    def _agent_turn(self, node: Node) -> None:
        if not node.up:
            return
        if node.link is None and node.reachable and self.control is not None:
            self.link_numbers += 1
            node.link, node.generation = Link(self.link_numbers), 0
        if node.assignment is not None:
            self._act(node, node.assignment)
        if node.link is not None and len(node.link.up) < 4:
            node.link.up.append(self._report(node))

    def _act(self, node: Node, assignment: Assignment) -> None:
        ended = [k for k, s in node.shards.items() if s.phase in ENDED]
        todo = difference(assignment, node.shards, ended)
        node.refused = {str(k): why for k, why in todo.refused.items()}
        for key in todo.stop:
            self._event(node, key, StopWanted(), "left the assignment")
        for spec in todo.start:
            self.starts[spec.key] += 1
            node.shards[spec.key] = Shard(spec, Phase.WAITING, "is new")
            self.story.append(f"{self.now_s:.1f} {node.name} starts {spec.key}")
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Forget ended shards of replicas that a later incarnation has followed here."""
        for key in sorted(k for k, s in node.shards.items() if s.phase in ENDED):
            later = [k for k in node.shards if k.replica == key.replica and k > key]
            assigned = node.assignment and key in {s.key for s in node.assignment.shards}
            if len(later) > 1 and not assigned:
                del node.shards[key]

    def _report(self, node: Node) -> Report:
        shards = tuple(
            ShardReport(key, shard.phase, shard.why, shard.spec, running=0)
            for key, shard in sorted(node.shards.items())
        )
        generation = node.generation
        return Report(inventory(node.name), shards, node.term, generation, dict(node.refused))

    def _go_on(self, node: Node, key: ShardKey) -> None:
        moves: dict[Phase, tuple[Event, str]] = {
            Phase.WAITING: (RendezvousOpen(), "spawned"),
            Phase.STARTING: (LoadingSeen(), "loads"),
            Phase.LOADING: (ProbePassed(), "answers"),
            Phase.STOPPING: (Exited(0), "stopped as asked"),
        }
        shard = node.shards[key]
        if shard.phase in moves:
            self._event(node, key, *moves[shard.phase])

    def _event(self, node: Node, key: ShardKey, event: Event, why: str) -> None:
        shard = node.shards[key]
        before = shard.phase
        shard.phase, shard.why = next_phase(before, event), why
        if shard.phase is not before:
            self.story.append(f"{self.now_s:.1f} {node.name} {key}: {shard.phase}, {why}")

    def _end(self, node: Node, key: ShardKey, why: str) -> None:
        node.shards[key].phase, node.shards[key].why = Phase.FAILED, why
        self.story.append(f"{self.now_s:.1f} {node.name} {key}: failed, {why}")

    # -- what must hold

    def check(self) -> None:
        """Fail with the story if something is that must never be."""
        for node in self.nodes.values():
            shares: Counter[str] = Counter()
            ports: Counter[int] = Counter()
            for shard in node.shards.values():
                if shard.phase in RUNS:
                    ports[shard.spec.port] += 1
                    for gpu in shard.spec.gpus:
                        shares[gpu] += round(shard.spec.memory_share * 100)
            over = {gpu: share for gpu, share in shares.items() if share > 100}
            self._require(not over, f"GPUs beyond their whole: {over}")
            twice = {port: n for port, n in ports.items() if n > 1}
            self._require(not twice, f"ports of {node.name} taken twice: {twice}")
        again = {str(key): n for key, n in self.starts.items() if n > 1}
        self._require(not again, f"started twice: {again}")

    def require_settled(self) -> None:
        """After calm: what runs is exactly what is wanted."""
        running: Counter[str] = Counter()
        # Without a store what fits the catalog no more is left running for an operator to judge.
        strays = {stray.replica for stray in self.decision.strays}
        self._require(not (strays and self.stored), f"strays although there is a store: {strays}")
        for node in self.nodes.values():
            for key, shard in node.shards.items():
                if shard.phase not in ENDED and key.replica not in strays:
                    running[shard.spec.profile] += 1
                    ready = shard.phase is Phase.READY
                    self._require(ready, f"{key} is {shard.phase} at the end")
        if strays:
            running.update({s.profile: s.missing for s in self.decision.shortfalls})
        wanted = Counter({p.name: p.replicas for _, p in self.catalog.wanted() if p.replicas})
        self._require(running == wanted, f"running {dict(running)}, wanted {dict(wanted)}")
        self._require(strays or len(self.store) == sum(wanted.values()), "intents are left over")

    def _require(self, holds: object, what: str) -> None:
        if not holds:
            raise BrokenWorldError(f"{what}\n" + "\n".join(self.story))
