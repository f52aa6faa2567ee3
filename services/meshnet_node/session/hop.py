"""One session at one hop: opened, accepted, computed, reported, attested.

`serve_session` is the whole of it, from challenge to end. What comes from the caller and from the
next hop are events of one queue, taken one at a time, so that nothing here happens at once but the
reading. Which frame may come when is a table (`_TAKEN_BY`); anything else ends the session. What a
session holds (its slot, its link to the next hop) it gives back however it ends.

    running     positions come from the caller
    sampling    the token after them was asked for, and comes back from the hops after
    finishing   the hops after are asked what they saw
    reported    the driver may send its evidence
    attesting   the hops after say whether they attested
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from meshnet_bus.groups import leaves
from meshnet_node.backends import BackendError, ContextFull, NoTokenizer, Slot, Step
from meshnet_node.foreign import kind_of, text_of
from meshnet_node.forward import Digests, token_bytes
from meshnet_node.session.entrance import CallerGone, Stream, enter
from meshnet_node.session.failure import SessionFailed, plain, violation
from meshnet_node.session.link import Link, Request
from meshnet_node.session.node import Node, ServedShard
from meshnet_node.session.opening import Opening
from meshnet_node.session.peers import next_endpoint
from meshnet_node.session.transport import MAX_FRAME_BYTES, MAX_SMALL_FRAME_BYTES
from meshnet_node.session.waiting import within
from meshnet_node.session.witness import decide, declined
from meshnet_proto import shard_runtime_pb2 as pb

_log = logging.getLogger("meshnet_node.session")
_T = TypeVar("_T")
_MARGIN_S = 1.0
State = Literal["running", "sampling", "finishing", "reported", "attesting", "ended"]
Side = Literal["caller", "next"]


class _Event(NamedTuple):
    side: Side
    what: pb.CallerFrame | pb.ResponderFrame | SessionFailed | None


class _Bounds(NamedTuple):
    """How many positions may go into the session and into one frame: the least of all hops."""

    positions: int
    frame: int


async def serve_session(node: Node, stream: Stream, is_stopping: Callable[[], bool]) -> None:
    """Serve one session. Raises SessionFailed, for the caller to hear, or CallerGone.

    Cancelled when the caller is gone too, so `is_stopping` tells which of the two it was.
    """
    opening, shard, seat = await enter(node, stream)
    if opening.purpose == "handshake":
        return
    async with AsyncExitStack() as held:
        held.callback(node.epochs.leave, opening.session[0], seat)
        held.enter_context(_told(opening, is_stopping))
        link = await _open_next(node, opening, shard, held)
        bounds = await _agree(node, opening, shard, link)
        slot = await held.enter_async_context(
            shard.slot(opening.start, opening.end, positions=bounds.positions)
        )
        await _Session(node, stream, opening, shard, link, slot, bounds).run(seat.superseded)


@contextmanager
def _told(opening: Opening, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Tell the node's owner that a session runs, and how it ended."""
    session, epoch = opening.session
    which = f"session {plain(session)}, epoch {epoch}, hop {opening.hop}"
    _log.info(
        "%s: opened by %s to %s layers [%d, %d)",
        which, opening.terms.keys.caller, opening.purpose, opening.start, opening.end,
    )  # fmt: skip
    try:
        yield
    except (SessionFailed, BackendError) as failure:
        _log.warning("%s: failed: %s", which, failure)
        raise
    except (CallerGone, anyio.get_cancelled_exc_class()):
        before = f"hop {opening.hop - 1}" if opening.hop else "its driver"
        how = "this node is stopping" if is_stopping() else f"{before} closed it or went away"
        # the usual end of a session to serve: a user who has what they wanted closes the stream
        level = logging.WARNING if opening.purpose == "certify" else logging.INFO
        _log.log(level, "%s: %s", which, how)
        raise
    _log.info("%s: over", which)


async def _open_next(
    node: Node, opening: Opening, shard: ServedShard, held: AsyncExitStack
) -> Link | None:
    """A link to the hop after, once its claim was looked at; None at the last hop."""
    if not opening.after:
        return None
    following = opening.after[0]
    try:
        endpoint = await next_endpoint(node.tracker, following, shard.fingerprint, opening.purpose)
        request = Request(
            purpose=opening.purpose,
            route_session_id=opening.terms.route_session_id,
            route_epoch=opening.terms.route_epoch,
            hop=opening.hop + 1,
            responder=following.at(endpoint),
            after=opening.after[1:],
        )
        return await held.enter_async_context(node.open(shard, request))
    except SessionFailed as failure:
        raise failure.seen_from_before(opening.hop + 1) from failure


async def _agree(node: Node, opening: Opening, shard: ServedShard, link: Link | None) -> _Bounds:
    """What every hop from this one on can do, once all of them are ready."""
    limits = node.limits
    positions = min(limits.positions, shard.facts.context_length)
    frame = shard.positions_per_frame(limits.positions_per_frame)
    if link is None:
        return _Bounds(positions, frame)
    try:
        # each hop after opens its next one meanwhile: whoever waits nearest gives up first
        with within(limits.open_timeout_s * len(opening.after), "ready of the next hop"):
            ready = (await link.receive("ready")).ready
        if not ready.max_positions or not ready.max_positions_per_frame:
            raise violation("it is ready for no positions")
    except SessionFailed as failure:
        raise failure.seen_from_before(opening.hop + 1) from failure
    return _Bounds(min(positions, ready.max_positions), min(frame, ready.max_positions_per_frame))


class _Session:
    """A session that was accepted, at a hop that has opened the next one."""

    def __init__(
        self,
        node: Node,
        stream: Stream,
        opening: Opening,
        shard: ServedShard,
        link: Link | None,
        slot: Slot,
        bounds: _Bounds,
    ) -> None:
        self._limits = node.limits
        self._node = node
        self._stream = stream
        self._opening = opening
        self._shard = shard
        self._link = link
        self._slot = slot
        self._bounds = bounds
        self._state: State = "running"
        self._position = 0
        """How many positions have gone in. Counted here: the slot's own count is the backend's word."""
        self._digests = Digests()
        self._attestation: pb.Attestation | None = None

    async def run(self, superseded: anyio.Event) -> None:
        """Compute until the session is over. Raises SessionFailed or CallerGone."""
        await self._say_ready()
        send, events = anyio.create_memory_object_stream[_Event](1)
        try:
            async with send, events, anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_caller, send)
                if self._link is not None:
                    tasks.start_soon(self._read_next, self._link, send)
                tasks.start_soon(_end_when, superseded)
                while self._state != "ended":
                    await self._take(await self._next_event(events))
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _first_to_tell(group) from None

    async def _say_ready(self) -> None:
        facts = self._shard.facts
        ready = pb.SessionReady(
            max_positions=self._bounds.positions,
            max_positions_per_frame=self._bounds.frame,
            end_tokens=sorted(facts.end_tokens),
            vocabulary=facts.vocabulary,
        )
        await self._up(pb.ResponderFrame(ready=ready))

    async def _read_caller(self, events: MemoryObjectSendStream[_Event]) -> None:
        most_bytes = MAX_FRAME_BYTES if self._opening.hop else MAX_SMALL_FRAME_BYTES
        while True:
            frame = await self._stream.receive(most_bytes)
            await events.send(_Event("caller", frame))
            if frame is None:
                return

    async def _read_next(self, link: Link, events: MemoryObjectSendStream[_Event]) -> None:
        try:
            while True:
                frame = await link.receive("tokens", "reports", "attestations")
                await events.send(_Event("next", frame))
        except SessionFailed as failure:
            await events.send(_Event("next", failure))

    async def _next_event(self, events: MemoryObjectReceiveStream[_Event]) -> _Event:
        """What happens next. Of a next hop that is silent for too long that is what happens.

        Of several hops that wait for the same silent peer the nearest one gives up first, and names it.
        """
        limits = self._limits
        if self._state in {"running", "reported"}:
            with within(
                limits.idle_timeout_s + _MARGIN_S * self._opening.hop, "frame of the caller"
            ):
                return await events.receive()
        patience_s = (
            limits.attest_timeout_s if self._state == "attesting" else limits.step_timeout_s
        )
        patience_s += _MARGIN_S * len(self._opening.after)
        try:
            with within(patience_s, "frame"):
                return await events.receive()
        except SessionFailed as silence:
            return _Event("next", silence)

    async def _take(self, event: _Event) -> None:
        side, what = event
        if what is None:
            raise CallerGone
        if isinstance(what, SessionFailed):
            await self._lose(what)
            return
        kind = what.WhichOneof("frame") or "an unknown frame"
        take = _TAKEN_BY.get((self._state, side), {}).get(kind)
        if take is None:
            fault = violation(f"{kind} while {self._state}")
            raise fault if side == "caller" else self._next_failed(fault)
        await take(self, getattr(what, kind))

    # -- computing -------------------------------------------------------------------------------

    async def take_prompt(self, frame: pb.Prompt) -> None:
        if self._opening.hop:
            raise violation("prompt: only the first hop takes text")
        most = self._limits.prompt_characters
        if not 0 < len(frame.text) <= most:
            raise violation(f"prompt: {len(frame.text)} characters, expected 1 to {most}")
        ids = await self._call(lambda: tuple(self._shard.loaded.encode(frame.text)))
        await self._up(pb.ResponderFrame(tokens=pb.Tokens(ids=ids)))

    async def take_tokens(self, frame: pb.Tokens) -> None:
        if self._opening.hop:
            raise violation("tokens: only the first hop takes token ids")
        self._check_positions(frame.position, len(frame.ids))
        ids, vocabulary = tuple(frame.ids), self._shard.facts.vocabulary
        if any(token >= vocabulary for token in ids):
            raise violation(f"tokens: an id beyond the vocabulary of {vocabulary}")
        self._digests.entered(token_bytes(ids))
        step = await self._computed(
            lambda: self._slot.forward_tokens(ids, sample=frame.sample),
            len(ids),
            sample=frame.sample,
        )
        await self._put_out(step, frame.position, len(ids), sample=frame.sample)

    async def take_activations(self, frame: pb.Activations) -> None:
        if not self._opening.hop:
            raise violation("activations: the first hop takes token ids")
        self._check_positions(frame.position, frame.count)
        data, size = frame.data, frame.count * self._shard.facts.position_bytes
        if len(data) != size:
            raise violation(
                f"activations: {len(data)} bytes for {frame.count} positions, expected {size}"
            )
        self._digests.entered(data)
        step = await self._computed(
            lambda: self._slot.forward_activations(data, sample=frame.sample),
            frame.count,
            sample=frame.sample,
        )
        await self._put_out(step, frame.position, frame.count, sample=frame.sample)

    def _check_positions(self, position: int, count: int) -> None:
        at = self._position
        if position != at:
            raise violation(f"position {position}, expected {at}: a frame was lost or repeated")
        if not 0 < count <= self._bounds.frame:
            raise violation(f"{count} positions in a frame, expected 1 to {self._bounds.frame}")
        if at + count > self._bounds.positions:
            raise violation(
                f"{at + count} positions, at most {self._bounds.positions} may go into one session"
            )

    async def _computed(self, forward: Callable[[], Step], count: int, *, sample: bool) -> Step:
        """What our backend made of `count` positions. What it should not have made is its own fault."""
        step, facts = await self._call(forward), self._shard.facts
        if not isinstance(step, Step):
            raise BackendError(f"a forward gave {kind_of(step)}, expected a Step")
        data, token, size = step.activations, step.token, count * facts.position_bytes
        if self._link is not None:
            if type(data) is not bytes or len(data) != size:
                found = f"{len(data)} bytes" if type(data) is bytes else kind_of(data)
                raise BackendError(f"a forward gave {found}, expected {size} bytes of activations")
        elif sample and (type(token) is not int or not 0 <= token < facts.vocabulary):
            raise BackendError(f"a forward gave {text_of(token)}, expected a token's id")
        self._position += count
        return step

    async def _put_out(self, step: Step, position: int, count: int, *, sample: bool) -> None:
        if self._link is not None:
            self._state = "sampling" if sample else "running"
            self._digests.left(step.activations)
            activations = pb.Activations(
                position=position, count=count, sample=sample, data=step.activations
            )
            await self._down(pb.CallerFrame(activations=activations))
        elif sample and (token := step.token) is not None:
            await self._return_token(token, await self._call(lambda: self._text_of(token)))

    def _text_of(self, token: int) -> bytes:
        try:
            return self._shard.loaded.decode(token)
        except NoTokenizer:
            return b""

    async def take_next_token(self, frame: pb.Tokens) -> None:
        if len(frame.ids) != 1 or frame.ids[0] >= self._shard.facts.vocabulary:
            raise self._next_failed(violation("a token that is none"))
        await self._return_token(frame.ids[0], frame.text)

    async def _return_token(self, token: int, text: bytes) -> None:
        self._state = "running"
        self._digests.generated(token)
        tokens = pb.Tokens(position=self._position, ids=[token], text=text)
        await self._up(pb.ResponderFrame(tokens=tokens))

    async def _call(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._shard.call(work)
        except NoTokenizer as error:
            raise SessionFailed(
                pb.ERROR_CODE_UNAVAILABLE,
                f"a text was sent to a node that takes token ids alone: {error}",
                retryable=False,
            ) from error
        except ContextFull as error:
            raise violation(str(error)) from error

    # -- what was seen ---------------------------------------------------------------------------

    async def take_finish(self, frame: pb.SessionFinish) -> None:
        if self._link is None:
            await self._report(())
        else:
            self._state = "finishing"
            await self._down(pb.CallerFrame(finish=frame))

    async def take_reports(self, frame: pb.HopReports) -> None:
        await self._report(tuple(frame.reports))

    async def _report(self, after: tuple[pb.HopReport, ...]) -> None:
        self._check_hops([report.hop for report in after])
        seen = self._digests.seen(is_last=self._link is None)
        ours = pb.HopReport(
            hop=self._opening.hop,
            in_digest=seen.in_digest,
            out_digest=seen.out_digest,
            tokens_generated=seen.tokens_generated,
            synthetic=self._shard.synthetic,
        )
        self._state = "reported"
        await self._up(pb.ResponderFrame(reports=pb.HopReports(reports=(ours, *after))))

    async def take_evidence(self, frame: pb.Evidence) -> None:
        """Pass the driver's account on, and judge it here meanwhile."""
        self._state = "attesting"
        await self._down(pb.CallerFrame(evidence=frame))
        seen = self._digests.seen(is_last=self._link is None)
        self._attestation = await decide(
            self._node, self._opening, self._shard, seen, frame.evidence
        )
        if self._link is None:
            await self._attested(())

    async def take_attestations(self, frame: pb.Attestations) -> None:
        self._check_hops([attestation.hop for attestation in frame.attestations])
        await self._attested(tuple(frame.attestations))

    async def _attested(self, after: tuple[pb.Attestation, ...]) -> None:
        ours = () if self._attestation is None else (self._attestation,)
        attestations = pb.Attestations(attestations=(*ours, *after))
        await self._up(pb.ResponderFrame(attestations=attestations))
        self._state = "ended"

    async def _lose(self, failure: SessionFailed) -> None:
        """The next hop failed. Whoever attested before that still says so."""
        failed = self._next_failed(failure)
        if self._state != "attesting":
            raise failed
        await self._attested(tuple(declined(hop, str(failed)) for hop in self._hops_after))

    # -- the two sides ---------------------------------------------------------------------------

    @property
    def _hops_after(self) -> list[int]:
        first = self._opening.hop + 1
        return list(range(first, first + len(self._opening.after)))

    def _check_hops(self, hops: list[int]) -> None:
        if hops != self._hops_after:
            raise self._next_failed(violation("it speaks for other hops than those after it"))

    def _next_failed(self, failure: SessionFailed) -> SessionFailed:
        return failure.seen_from_before(self._opening.hop + 1)

    async def _up(self, frame: pb.ResponderFrame) -> None:
        with within(self._limits.step_timeout_s, "room to answer"):
            await self._stream.send(frame)

    async def _down(self, frame: pb.CallerFrame) -> None:
        if self._link is not None:
            with within(self._limits.step_timeout_s, "room to go on"):
                await self._link.send(frame)


_TAKEN_BY: dict[tuple[State, Side], dict[str, Callable[[_Session, Any], Awaitable[None]]]] = {
    ("running", "caller"): {
        "prompt": _Session.take_prompt,
        "tokens": _Session.take_tokens,
        "activations": _Session.take_activations,
        "finish": _Session.take_finish,
    },
    ("sampling", "next"): {"tokens": _Session.take_next_token},
    ("finishing", "next"): {"reports": _Session.take_reports},
    ("reported", "caller"): {"evidence": _Session.take_evidence},
    ("attesting", "next"): {"attestations": _Session.take_attestations},
}
"""Which frames may come, by state and from whom, and what takes each. Nothing else may come."""


async def _end_when(superseded: anyio.Event) -> NoReturn:
    await superseded.wait()
    raise SessionFailed(pb.ERROR_CODE_STALE_EPOCH, "a newer epoch of this session has been opened")


def _first_to_tell(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended a session: of several things at once, the first that tells the caller why."""
    found = leaves(group)
    return next((error for error in found if isinstance(error, SessionFailed)), found[0])
