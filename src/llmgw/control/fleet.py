"""The one owner of what this control plane knows of the fleet: messages in, an immutable View out.

Nothing here waits, sends or reads a clock. What an ended or replaced link says is ignored, because
messages name their link and only a node's newest one is known. A node counts as silent from the
moment this control plane first knew of it, at the earliest from its own start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from llmgw.control.messages import (
    Assigned,
    ComingOrGoing,
    Condemned,
    GatewayAttached,
    GatewayLeft,
    GatewaysBelong,
    GatewayTold,
    LeadTaken,
    Message,
    NodeAttached,
    NodeLeft,
    NodeReported,
    NodesBelong,
    Published,
)
from llmgw.core.fleet.ages import Ages
from llmgw.core.fleet.assignment import TERM_BELIEVED_MAX, Assignment
from llmgw.core.fleet.catalog import Catalog
from llmgw.core.fleet.intent import Intent, Wanted
from llmgw.core.fleet.replica import is_serving, seen
from llmgw.core.fleet.report import Report, ShardReport
from llmgw.core.fleet.view import ENDED, GatewayView, NodeView, Rules, View
from llmgw.core.ids import LinkId, NodeId, ReplicaId, ShardKey

NEWS_MAX: Final = 1_000
"""Events that wait to be stored; beyond it the oldest are dropped."""
REPORTED_EVENTS_MAX: Final = 200
"""Events of one report that are looked at."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What the reconciler adds to a view: what is wanted, and about itself."""

    catalog: Catalog
    intents: Mapping[ReplicaId, Intent] = field(default_factory=dict)
    leads_since_s: float = 0.0
    """Monotonic."""
    stored: bool = True
    rules: Rules = field(default_factory=Rules)
    fresh_ids: tuple[ReplicaId, ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened, for the store's events."""

    subject: str
    what: str
    at_s: float
    """Monotonic."""
    source: str | None = None
    sequence: int | None = None


@dataclass(slots=True)
class _Node:
    name: str
    heard_s: float
    link: LinkId | None = None
    report: Report | None = None
    reported_by: LinkId | None = None
    term: int = 0
    ours: bool = False
    """Whether this control plane has assigned something to it."""
    generation: int = 0
    sent: Assignment | None = None
    """The last one on this link."""
    unread: list[Assignment] = field(default_factory=list)
    """Those on this link that the report does not know of yet."""
    events_seen: frozenset[int] = frozenset()
    """Those of the last report; the store knows older ones when they come again."""

    @property
    def linked(self) -> bool:
        return self.link is not None and self.link == self.reported_by

    def forget_sent(self) -> None:
        self.sent = None
        self.unread.clear()


@dataclass(slots=True)
class _Gateway:
    heard_s: float
    link: LinkId | None = None
    order: tuple[int, int] = (0, 0)
    in_flight: Mapping[str, int] = field(default_factory=dict)
    ours: bool = False
    """Whether it has been linked here: what it acts on since then is from here."""


@dataclass(slots=True)
class _Ready:
    """How long an incarnation served; kept when it fails, since that is when it is asked for."""

    incarnation: int
    since_s: float
    seconds: float = 0.0


class Fleet:
    """Takes messages one after the other; everybody else sees views."""

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._nodes: dict[NodeId, _Node] = {}
        self._node_of: dict[LinkId, NodeId] = {}
        self._gateways: dict[str, _Gateway] = {}
        self._gateway_of: dict[LinkId, str] = {}
        self._belonging: frozenset[str] = frozenset()
        self._condemned: set[ReplicaId] = set()
        self._published: Published | None = None
        self._foreign_term = 0
        """The highest that was heard from those who cannot have it from here."""
        self._unrouted: dict[ReplicaId, tuple[int, int]] = {}
        self._ready: dict[ReplicaId, _Ready] = {}
        self._news: list[News] = []
        self._ages = Ages()
        self._drains = False
        """Whether some replica waits for requests to end: then every figure may matter."""

    def take(self, message: Message, now_s: float) -> bool:
        """Learn from one message; tell whether there may now be something to decide."""
        match message:
            case NodeReported():
                return self._node_reported(message, now_s)
            case GatewayTold():
                return self._gateway_told(message, now_s)
            case Assigned():
                self._assigned(message)
                return False
            case Published():
                self._now_published(message)
                return False
            case Condemned():
                self._condemned.add(message.replica)
            case LeadTaken():
                self._lead_taken()
            case _:
                self._take_coming_or_going(message, now_s)
        return True

    def _take_coming_or_going(self, message: ComingOrGoing, now_s: float) -> None:
        match message:
            case NodesBelong():
                self._nodes_belong(message.names, now_s)
            case NodeAttached():
                self._node_attached(message, now_s)
            case NodeLeft():
                self._node_left(message, now_s)
            case GatewaysBelong():
                self._gateways_belong(message.gateways)
            case GatewayAttached():
                self._gateway_attached(message, now_s)
            case GatewayLeft():
                self._gateway_left(message, now_s)

    # -- nodes

    def _nodes_belong(self, names: Mapping[NodeId, str], now_s: float) -> None:
        for gone in self._nodes.keys() - names.keys():
            self._drop_link(self._nodes.pop(gone).link)
        for id_, name in names.items():
            self._node(id_, name, now_s).name = name

    def _node(self, id_: NodeId, name: str, now_s: float) -> _Node:
        return self._nodes.setdefault(id_, _Node(name, max(now_s, self._started_s)))

    def _drop_link(self, link: LinkId | None) -> None:
        if link is not None:
            self._node_of.pop(link, None)

    def _node_attached(self, message: NodeAttached, now_s: float) -> None:
        node = self._node(message.node, message.name, now_s)
        self._drop_link(node.link)
        node.name, node.link, node.heard_s = message.name, message.link, now_s
        node.term = max(node.term, message.term)
        if not node.ours:
            self._foreign_term = max(self._foreign_term, message.term)
        node.forget_sent()
        self._node_of[message.link] = message.node
        self._tell(message.node, f"{message.name} is connected", now_s)

    def _node_reported(self, message: NodeReported, now_s: float) -> bool:
        id_ = self._node_of.get(message.link)
        if id_ is None:
            return False
        node, report = self._nodes[id_], message.report
        news = not node.linked or self._drains or _essence(node.report) != _essence(report)
        node.report, node.reported_by, node.heard_s = report, message.link, now_s
        node.term = max(node.term, report.term)
        node.generation = max(node.generation, report.generation)
        node.unread = [a for a in node.unread if a.generation > report.generation]
        events = report.events[-REPORTED_EVENTS_MAX:]
        for event in events:
            if event.sequence not in node.events_seen:
                at_s = now_s - max(event.ago_s, 0.0)
                self._news.append(News(event.subject, event.what, at_s, id_, event.sequence))
                news = True
        node.events_seen = frozenset(event.sequence for event in events)
        del self._news[:-NEWS_MAX]
        return news

    def _node_left(self, message: NodeLeft, now_s: float) -> None:
        id_ = self._node_of.pop(message.link, None)
        if id_ is None:
            return
        node = self._nodes[id_]
        node.link, node.heard_s = None, now_s
        node.forget_sent()
        why = f": {message.why}" if message.why else ""
        self._tell(id_, f"{node.name} is not connected any more{why}", now_s)

    def _assigned(self, message: Assigned) -> None:
        id_ = self._node_of.get(message.link)
        if id_ is None:
            return
        node = self._nodes[id_]
        node.sent, node.ours = message.assignment, True
        node.generation = max(node.generation, message.assignment.generation)
        node.unread.append(message.assignment)

    # -- gateways

    def _gateways_belong(self, gateways: frozenset[str]) -> None:
        self._belonging = gateways
        linked = set(self._gateway_of.values())
        for gone in self._gateways.keys() - gateways - linked:
            del self._gateways[gone]
        for id_ in gateways:
            self._gateways.setdefault(id_, _Gateway(self._started_s))

    def _gateway_attached(self, message: GatewayAttached, now_s: float) -> None:
        gateway = self._gateways.setdefault(message.gateway, _Gateway(now_s))
        if gateway.link is not None:
            self._gateway_of.pop(gateway.link, None)
        if not gateway.ours:
            self._foreign_term = max(self._foreign_term, message.term)
        gateway.ours = True
        gateway.link, gateway.heard_s = message.link, now_s
        # What it has in flight is not known before it says so: until then it acts on nothing new.
        gateway.order = (0, 0)
        self._gateway_of[message.link] = message.gateway

    def _gateway_told(self, message: GatewayTold, now_s: float) -> bool:
        id_ = self._gateway_of.get(message.link)
        if id_ is None:
            return False
        gateway, load = self._gateways[id_], message.load
        acts_on = (load.term, load.revision)
        news = acts_on != gateway.order  # who has just changed something waits for it
        gateway.order, gateway.heard_s = acts_on, now_s
        gateway.in_flight = {replica: n for replica, n in load.in_flight.items() if n > 0}
        return self._drains or news

    def _gateway_left(self, message: GatewayLeft, now_s: float) -> None:
        id_ = self._gateway_of.pop(message.link, None)
        if id_ is None:
            return
        gateway = self._gateways[id_]
        gateway.link, gateway.heard_s = None, now_s
        if id_ not in self._belonging:
            del self._gateways[id_]

    # -- about this control plane

    def _lead_taken(self) -> None:
        self._published = None
        self._unrouted.clear()
        self._ages = Ages()
        for node in self._nodes.values():
            node.forget_sent()

    def _now_published(self, message: Published) -> None:
        self._published = message
        for id_ in message.routed:
            self._unrouted.pop(id_, None)

    def _tell(self, subject: str, what: str, now_s: float) -> None:
        self._news.append(News(subject, what, now_s))
        del self._news[:-NEWS_MAX]

    # -- what others see

    def view(self, now_s: float, wall_s: float, desired: Desired) -> View:
        """Return everything that is known at `now_s`, beside what is wanted."""
        intents = desired.intents
        self._forget_condemned(intents)
        self._drains = any(intent.wanted is Wanted.DRAIN for intent in intents.values())
        view = View(
            desired.catalog,
            intents,
            {id_: _node_view(id_, node, now_s) for id_, node in sorted(self._nodes.items())},
            tuple(_gateway_view(id_, g, now_s) for id_, g in sorted(self._gateways.items())),
            self._unrouted_of(intents),
            condemned=frozenset(self._condemned),
            age_s=now_s - desired.leads_since_s,
            stored=desired.stored,
            rules=desired.rules,
            ages=self._ages.of(intents.values(), now_s, wall_s),
            fresh_ids=desired.fresh_ids,
        )
        return replace(view, ready_s=self._ready_now(view, now_s))

    def _unrouted_of(self, intents: Mapping[ReplicaId, Intent]) -> dict[ReplicaId, tuple[int, int]]:
        if self._published is None:
            return {}
        order, routed = self._published.order, self._published.routed
        for gone in self._unrouted.keys() - intents.keys():
            del self._unrouted[gone]
        for id_ in intents.keys() - routed:
            self._unrouted.setdefault(id_, order)
        return dict(self._unrouted)

    def _ready_now(self, view: View, now_s: float) -> dict[ReplicaId, float]:
        for gone in self._ready.keys() - view.intents.keys():
            del self._ready[gone]
        for id_, intent in view.intents.items():
            incarnation = intent.placement.incarnation
            ready = self._ready.get(id_)
            if is_serving(seen(intent, view)):
                if ready is None or ready.incarnation != incarnation:
                    ready = self._ready[id_] = _Ready(incarnation, now_s)
                ready.seconds = now_s - ready.since_s
            elif ready is not None and ready.incarnation != incarnation:
                del self._ready[id_]
        return {id_: ready.seconds for id_, ready in self._ready.items()}

    def _forget_condemned(self, intents: Mapping[ReplicaId, Intent]) -> None:
        """Drop those of which nothing is left; a silent node's last report still counts."""
        alive = {
            shard.key.replica
            for node in self._nodes.values()
            for shard in (node.report.shards if node.report else ())
            if shard.phase not in ENDED
        }
        quiet = any(node.report is None for node in self._nodes.values())
        if not quiet:
            self._condemned &= alive | intents.keys()

    def heard_links(self) -> dict[NodeId, LinkId]:
        """Return the open links that a report has come by."""
        return {id_: n.link for id_, n in self._nodes.items() if n.linked and n.link is not None}

    def link_of(self, node: NodeId) -> LinkId | None:
        """Return a node's open link."""
        known = self._nodes.get(node)
        return known.link if known else None

    def name_of(self, node: NodeId) -> str:
        """Return what people call a node."""
        known = self._nodes.get(node)
        return known.name if known else node

    def sent(self, node: NodeId) -> Assignment | None:
        """Return the last assignment on a node's open link."""
        known = self._nodes.get(node)
        return known.sent if known else None

    def next_generation(self, node: NodeId) -> int:
        """Return a generation above all that this node has seen or was sent."""
        return self._nodes[node].generation + 1

    def term_to_pass(self, own: int) -> int:
        """Return the highest term that a leader with this one must go past; 0 where it is past all.

        Others obey the highest term and ignore lower ones. One that is as high as ours and was
        heard from somebody who cannot have it from here is another leader's, too: of an earlier
        life without a store, or from before a backup was restored.
        """
        higher = [node.term for node in self._nodes.values() if node.term > own]
        if self._foreign_term >= own:
            higher.append(self._foreign_term)
        return max((term for term in higher if term <= TERM_BELIEVED_MAX), default=0)

    def where(self, key: ShardKey) -> NodeId | None:
        """Return the node that last reported this shard."""
        for id_, node in self._nodes.items():
            if node.report and any(shard.key == key for shard in node.report.shards):
                return id_
        return None

    def news(self) -> tuple[News, ...]:
        """Return what waits to be stored."""
        return tuple(self._news)

    def forget_news(self, stored: Iterable[News]) -> None:
        """Drop what was stored."""
        done = set(stored)
        self._news = [news for news in self._news if news not in done]


def _node_view(id_: NodeId, node: _Node, now_s: float) -> NodeView:
    silent_s = 0.0 if node.linked else max(now_s - node.heard_s, 0.0)
    pending = frozenset(spec.key for a in node.unread for spec in a.shards)
    return NodeView(id_, node.name, node.report, node.linked, silent_s, pending)


def _gateway_view(id_: str, gateway: _Gateway, now_s: float) -> GatewayView:
    silent_s = 0.0 if gateway.link is not None else max(now_s - gateway.heard_s, 0.0)
    return GatewayView(id_, gateway.order, gateway.in_flight, silent_s)


def _essence(report: Report | None) -> Report | None:
    """Return a report without what changes all the time and alone decides nothing."""
    if report is None:
        return None
    gpus = tuple(replace(gpu, memory_used_mib=None) for gpu in report.inventory.gpus)
    shards = tuple(_essential(shard) for shard in report.shards)
    inventory = replace(report.inventory, gpus=gpus)
    return replace(report, inventory=inventory, shards=shards, events=())


def _essential(shard: ShardReport) -> ShardReport:
    return replace(shard, started_ago_s=None, answered_ago_s=None, running=None, last_log="")
