"""Sends a call to the engine and its answer to the client, and elsewhere where that is safe."""

from typing import Final

from llmgw.core.errors import UpstreamFailedError
from llmgw.core.traffic.call import Call, body_for_engine
from llmgw.core.traffic.tokens import estimate
from llmgw.core.traffic.usage import Ending
from llmgw.gateway.answer import Answer, Asked, Turn
from llmgw.gateway.entry import Entry
from llmgw.gateway.failures import (
    ConnectFailedError,
    KeyRefusedError,
    NotReadyError,
    StaleConnectionError,
)
from llmgw.gateway.gate import Gate, Slot
from llmgw.gateway.options import Deadlines
from llmgw.gateway.ports import Client, Endpoint, Ledger, Request
from llmgw.gateway.replicas import Replica
from llmgw.runtime.clock import Clock

STALE_S: Final = 1.0
"""A connection that was closed while nobody used it shows that within a round trip; one that is
closed later was closed by an engine that had the request, and may have worked on it."""

# The engine has done no work: another may be asked.
_NO_WORK_DONE: Final = (ConnectFailedError, KeyRefusedError, NotReadyError)

NOT_IMPLEMENTED: Final = 501
"""Embeddings of a model that has none: about the request, whoever asks for it again."""

# All that an engine learns of a client; never what proves who it is.
_PASSED_ON: Final = ("X-Request-Id", "traceparent", "tracestate")


class EngineRelay:
    """Relays calls; keeps the answers under way, to look at their deadlines."""

    def __init__(self, gate: Gate, ledger: Ledger, deadlines: Deadlines, clock: Clock) -> None:
        self._gate = gate
        self._ledger = ledger
        self._deadlines = deadlines
        self._clock = clock
        self._under_way: set[Answer] = set()

    async def relay(
        self,
        slot: Slot,
        endpoint: Endpoint,
        request: Request,
        call: Call,
        client: Client,
        entry: Entry,
    ) -> None:
        """Answer from the first replica that does; keep `entry` current with every chunk."""
        remove_usage = endpoint.streams and call.streamed and not call.wants_usage
        body = body_for_engine(call, model=slot.model.route.name, ask_usage=remove_usage)
        tail = _last_lines(request, body)
        entry.guess_prompt(estimate(len(call.body)))
        while True:
            entry.replica = slot.replica.target.replica
            self._ledger.note(entry)
            asked = Asked(remove_usage, endpoint.streams, slot.may_move)
            answer = Answer(client, entry, asked, self._clock)
            message = endpoint.request_line + slot.replica.request_head + tail
            try:
                await self._exchange(slot.replica, message, answer)
            except UpstreamFailedError as error:
                self._gate.failed(slot.replica, error.code)
                if client.started:
                    answer.break_off(error)
                elif isinstance(error, _NO_WORK_DONE) and slot.move():
                    continue
                else:
                    entry.took_nothing()
                raise
            except BaseException:
                slot.replica.breaker.ended_open()
                raise
            self._judge(slot.replica, answer, entry)
            return

    async def _exchange(self, replica: Replica, message: bytes, answer: Answer) -> None:
        while True:
            connection = replica.pool.take() or await replica.pool.connect()
            self._under_way.add(answer)
            began_s = self._clock.monotonic_s()
            try:
                answer.begin(connection, message, began_s)
                while await answer.turn() is not Turn.ENDED:
                    await answer.drained()
            except StaleConnectionError:
                if not connection.used or self._clock.monotonic_s() - began_s > STALE_S:
                    raise
                # The engine closed it while nobody used it: that says nothing about the engine.
            else:
                return
            finally:
                answer.leave()
                self._under_way.discard(answer)

    def _judge(self, replica: Replica, answer: Answer, entry: Entry) -> None:
        failure = answer.meter.failure if answer.meter is not None else None
        if answer.status >= 500 and answer.status != NOT_IMPLEMENTED:
            self._gate.answered_badly(replica, "upstream_status")
            entry.ending = Ending.ENGINE_FAILED
        elif failure is not None:
            self._gate.answered_badly(replica, "upstream_error_event")
            entry.ending = Ending.ENGINE_FAILED
        else:
            replica.breaker.succeeded()

    def look_at_time(self) -> None:
        """End what has been silent for too long."""
        now_s = self._clock.monotonic_s()
        for answer in tuple(self._under_way):
            answer.look_at_time(now_s, self._deadlines)


def _last_lines(request: Request, body: bytes) -> bytes:
    lines = []
    for name in _PASSED_ON:
        value = request.header(name)
        if value is not None:
            lines.append(f"{name}: {value}\r\n")
    head = "".join(lines).encode("utf-8", "surrogateescape")
    return b"%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        head,
        len(body),
        body,
    )
