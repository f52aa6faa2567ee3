"""The tracker's end of the queries: when it may answer at all, waiting for a sequence, the clock.

    api = TrackerApi(projector, StreamApi(nc, realm), liveness=overlay)
    tasks.start_soon(QueryService(nc, realm, api.answer).run)

A tracker answers from what it has folded and names the sequence. It is `unavailable` while its
projector does not run (it faulted, or never began), until that has caught up once, and again if it
falls `MAX_LAG` records behind. It is `behind` when `min_sequence` is not folded within `WAIT_S`; and
at once when too many wait for a sequence already, so that waiting cannot use up a tracker.

`clock` needs no state: it is answered whenever the stream's leader tells its time. `head` needs both:
the fold knows where the message is, and the leader has it; what it has is told only if it is what was
folded.
"""

from typing import Any, cast

import anyio
import msgspec

from meshnet_bus.api import ApiError, StreamApi
from meshnet_bus.client import Unreachable
from meshnet_events.answers import ClockAnswer, HeadAnswer
from meshnet_events.gate import Gate
from meshnet_events.queries import (
    BEHIND,
    NOT_FOUND,
    UNAVAILABLE,
    ClockQuery,
    HeadQuery,
    Query,
    QueryError,
    Reply,
)
from meshnet_events.screened import Event
from meshnet_tracker.api.answers import StateQuery, answer_from
from meshnet_tracker.projector import Projector
from meshnet_tracker.registry.eligibility import Liveness

WAIT_S = 5.0
"""How long a query waits for its `min_sequence`."""
MAX_LAG = 10_000
"""How many records a tracker that had caught up may be behind and still answer."""
MAX_WAITING = 32
"""How many queries may wait for a sequence at once: half of what a service answers at once."""


class TrackerApi:
    """Answers queries from one projector."""

    def __init__(
        self,
        projector: Projector,
        stream: StreamApi,
        *,
        liveness: Liveness | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        """`liveness` is the overlay of whoever listens to presence; without it, presence is ignored."""
        self._projector = projector
        self._stream = stream
        self._gate = Gate(stream.realm)
        self._liveness = liveness
        self._wait_s = wait_s
        self._waiting = 0
        self._has_caught_up = False

    async def answer(self, query: Query[Any]) -> Reply[Any]:
        """The answer, or why there is none. Raises nothing that is foreseen."""
        if isinstance(query, ClockQuery):
            return await self._clock(query)
        error = self._why_not() or await self._wait_for(query.min_sequence)
        if error is not None:
            return self._refused(error)
        if isinstance(query, HeadQuery):
            return await self._head(query)
        state = self._projector.state
        found = answer_from(state, cast("StateQuery", query), self._liveness)
        if isinstance(found, QueryError):
            return self._refused(found)
        return Reply(sequence=state.sequence, answer=found)

    async def _clock(self, query: ClockQuery) -> Reply[Any]:
        if query.min_sequence and (
            error := self._why_not() or await self._wait_for(query.min_sequence)
        ):
            return self._refused(error)
        try:
            time_ns = await self._stream.leader_time_ns()
        except (ApiError, Unreachable) as error:
            return self._refused(
                QueryError(UNAVAILABLE, f"the stream's leader does not tell its time: {error}")
            )
        projector, answer = self._projector, ClockAnswer(time_ns)
        if self._why_not() is None:
            policy = projector.state.policy
            answer = ClockAnswer(time_ns, policy.max_clock_skew_ms, policy.max_report_age_ms)
        return Reply(sequence=projector.folded, answer=answer)

    async def _head(self, query: HeadQuery) -> Reply[Any]:
        state = self._projector.state
        sequence, chain = state.sequence, state.chain_of(query.node)
        if not chain.sequence:
            return self._refused(QueryError(NOT_FOUND, f"no event of {query.node} was ever heard"))
        try:
            record = await self._stream.leader_record(chain.sequence)
        except (ApiError, Unreachable) as error:
            return self._refused(
                QueryError(UNAVAILABLE, f"the stream's leader does not give the message: {error}")
            )
        event = None if record is None else self._gate.screen(record.body, record.subject).result
        if record is None or not isinstance(event, Event) or event.digest != chain.digest:
            return self._refused(
                QueryError(
                    UNAVAILABLE, f"the stream holds no more at {chain.sequence} what was folded"
                )
            )
        body = msgspec.Raw(record.body)
        head = HeadAnswer(body=body, head_sequence=chain.sequence, node=query.node)
        return Reply(sequence=sequence, answer=head)

    def _refused(self, error: QueryError) -> Reply[Any]:
        return Reply(sequence=self._projector.folded, error=error)

    def _why_not(self) -> QueryError | None:
        """What keeps this tracker from answering now."""
        projector = self._projector
        if not projector.is_running:
            return QueryError(
                UNAVAILABLE, "the projector does not run: it faulted, was stopped, or never began"
            )
        lag = projector.last_known - projector.folded
        self._has_caught_up = self._has_caught_up or (projector.last_known > 0 and lag <= 0)
        if not self._has_caught_up:
            return QueryError(UNAVAILABLE, "the projector has not caught up with the stream yet")
        if lag > MAX_LAG:
            return QueryError(UNAVAILABLE, f"the projector is {lag:,} records behind the stream")
        return None

    async def _wait_for(self, sequence: int) -> QueryError | None:
        """Wait until `sequence` is folded, as long as a query may."""
        projector = self._projector
        if projector.folded >= sequence:
            return None
        if self._waiting >= MAX_WAITING:
            return QueryError(
                BEHIND, f"too many queries wait for a sequence; at {projector.folded}"
            )
        self._waiting += 1
        try:
            with anyio.move_on_after(self._wait_s):
                await projector.reached(sequence)
                return None
        finally:
            self._waiting -= 1
        return QueryError(
            BEHIND,
            f"folded up to {projector.folded} after {self._wait_s:g} s; {sequence} was asked for",
        )
