"""The piece of a chain that an outbox keeps, held in agreement with the stream.

The own last record of the stream is looked at, `place` judges what it shows, and the file follows:

    HELD       everything up to it is stored; the rest is pending, again where the stream lost it
    MOVED_ON   the chain goes on from there: the key was used elsewhere while the file was closed
    FORKED     another process has this key: `KeyInUse`
    GAP        a tracker is asked for the place; without one it is `PlaceLost`

Where that record is the last event acknowledged, at the sequence where it was stored, that is all.
Anything else may be an old event of ours that someone stored again, over a stream that lost its tail
or under a file that is an older copy of itself. Then the stream itself tells what it holds (`_held`):
the newest kept event that still lies where it was stored is looked for (a few reads, as a rule one),
and from it the chain is followed through our own records, as every reader follows it. A tracker could
not tell, for it may still hold what the stream lost. Nothing but a missing event lets any be sent
again, and nothing is sent behind less than the stream holds. (All this is read as `root` reads
record 1, so it takes no further grant.)

What no one can tell apart from the true tail is a last record at the very sequence where our last
event was, after a loss. Whoever stores it there hides what is lost before it.

Where the leader does not let us read, the last record stands by itself: what lies behind it is sent
again, which is harmless. Signing anew is not, so at the first look of a process a copy is not
believed: a tracker must tell the place, and without one nothing is sent until the reading is granted.

Where events were stored is written to the file many at a time: a crash before that loses only what
looking at the stream tells again.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Self

import anyio
from msgspec import Struct
from msgspec.structs import replace

from meshnet_bus.api import StreamApi
from meshnet_bus.backoff import Backoff
from meshnet_bus.client import Unreachable
from meshnet_bus.outbox_file import Acknowledged, OutboxError, OutboxFile, corrupted
from meshnet_bus.place import (
    AskHead,
    KeyInUse,
    OwnEvents,
    PlaceLost,
    Standing,
    Verdict,
    confirm_place,
    judge,
    way_on,
)
from meshnet_bus.recovery import Found, NotReadable, OwnRecords, find_place
from meshnet_events.envelope import ChainHead, SignedEvent

_LOOKS = 3
_REMEMBERED = 512  # events that need not be read back to be sent
_LOOK_PAUSE_S = 0.1
_log = logging.getLogger("meshnet_bus")


class _Shown(Struct, frozen=True):
    """What the own last record shows: its place (None if it is not ours) and sequence."""

    place: ChainHead | None
    sequence: int


class KeptChain:
    """One key's piece of chain. What concerns sending is for one task alone."""

    def __init__(
        self,
        file: OutboxFile,
        standing: Standing | None,
        api: StreamApi,
        own: OwnEvents,
        *,
        ask_head: AskHead | None,
        chance: Callable[[int], bytes],
    ) -> None:
        """Use `KeptChain.open`."""
        self.path = file.path
        self.standing = standing
        """How far it reaches; None while the place in the chain is not known."""
        self.has_looked = False
        """Whether it was compared with the stream since it was opened."""
        self._file = file
        self._api = api
        self._own = own
        self._ask_head = ask_head
        self._chance = chance
        self._records = OwnRecords(api, own, chance=chance)
        self._newest: deque[SignedEvent] = deque(maxlen=_REMEMBERED)
        self._unwritten: dict[int, Acknowledged] = {}
        self._told_copy = 0  # the sequence of the last copy that was logged
        self._of_earlier_processes = 0 if standing is None else standing.tip.issuerseq
        self._moving = anyio.Lock()  # whoever moves the tip, or judges by it

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        api: StreamApi,
        own: OwnEvents,
        *,
        ask_head: AskHead | None,
        chance: Callable[[int], bytes],
    ) -> AsyncIterator[Self]:
        """Open the file at `path`; nothing is compared yet. Raises `OutboxError`."""
        async with OutboxFile.open(path, api.realm, own.issuer) as file:
            yield cls(file, await file.standing(), api, own, ask_head=ask_head, chance=chance)

    @property
    def known(self) -> Standing:
        """How far it reaches, where the place in the chain must be known."""
        if self.standing is None:
            raise RuntimeError("the place in the chain is not known yet")
        return self.standing

    async def begin(self) -> None:
        """Find the place in the chain if it is not known. Raises `Unreachable` and `PlaceLost`."""
        async with self._moving:
            if self.standing is None:
                try:
                    found = await find_place(self._api, self._own, self._ask_head)
                except Unreachable as error:
                    raise Unreachable(
                        f"the outbox {self.path} is new, and where the chain of {self._own.issuer} "
                        f"stands must first be read from the stream: {error}"
                    ) from error
                origin = found.place
                if origin.issuerseq:
                    told = (
                        "the outbox %s is new or was emptied, and %s published before: its chain goes "
                        "on with event %d. What another outbox of this key had not sent, if there was "
                        "one, is lost"
                    )
                    _log.warning(told, self.path, self._own.issuer, origin.issuerseq + 1)
                await self._begin_at(origin, found.sequence)
                self.has_looked = True

    async def append(self, sign: Callable[[ChainHead], Sequence[SignedEvent]], now_ms: int) -> None:
        """Keep the events that `sign` makes to follow the tip. Raises `OutboxError`."""
        async with self._moving:
            events = sign(self.known.tip)
            if not events:
                return
            last = events[-1].head
            try:
                await self._file.append(events, now_ms)
            except BaseException:
                # a task that asyncio itself cancels (gRPC's are) leaves a commit that happens
                if await self._file.digest_at(last.issuerseq) == last.digest:
                    self._move_tip(events)
                raise
            self._move_tip(events)

    async def next_events(self, limit: int) -> list[SignedEvent]:
        """The next pending events, at most `limit`."""
        standing, newest = self.known, self._newest
        while newest and newest[0].head.issuerseq <= standing.stored.issuerseq:
            newest.popleft()
        if newest and newest[0].head.issuerseq == standing.stored.issuerseq + 1:
            return list(islice(newest, limit))
        return await self._file.events(
            standing.stored.issuerseq, min(limit, max(standing.pending, 0))
        )

    def prove(self, event: SignedEvent) -> None:
        """Raise `OutboxError` unless the next event, if another process wrote it, is what we signed."""
        if event.head.issuerseq > self._of_earlier_processes:
            return
        found = self._own.read(event.body)
        if (
            found is None
            or ChainHead(found.issuerseq, found.digest) != event.head
            or ChainHead(found.issuerseq - 1, found.prev) != self.known.stored
        ):
            detail = f"event {event.head.issuerseq} is not the one that {self._own.issuer} signed"
            raise OutboxError(corrupted(self.path, detail))

    def acknowledge(self, head: ChainHead, sequence: int) -> None:
        """Note that the next pending event is stored."""
        self._unwritten[head.issuerseq] = Acknowledged(sequence, duplicate=False)
        self.standing = replace(self.known, stored=head)

    async def acknowledged(self, number: int) -> Acknowledged | None:
        """Where the event with that number was stored; None when it is pending or not kept."""
        return self._unwritten.get(number) or await self._file.acknowledged(number)

    @property
    def unwritten(self) -> int:
        """How many acknowledgements are noted and not in the file."""
        return len(self._unwritten)

    async def write_acknowledgements(self, now_ms: int) -> None:
        """Write to the file what is noted. Raises `OutboxError`; then it stays noted."""
        if written := dict(self._unwritten):
            await self._file.acknowledge(written, now_ms)
            for number in written:
                self._unwritten.pop(number, None)

    async def prune(self, *, before_ms: int, limit: int) -> bool:
        """Drop at most `limit` events that were acknowledged before `before_ms`: were there any?"""
        origin = await self._file.prune(before_ms=before_ms, limit=limit)
        if origin is not None:
            self.standing = replace(self.known, origin=origin)
        return origin is not None

    async def look(self, *, expected: int) -> None:
        """Compare with the own last record of the stream, and follow it.

        Answers may be stale, so one behind the number `expected` is asked for again. Raises
        `Unreachable`, `KeyInUse` and `PlaceLost`.
        """
        await self.begin()
        shown = await self._furthest(expected)
        await self._reconcile(shown)
        self.has_looked = True

    async def _furthest(self, expected: int) -> _Shown:
        furthest = _Shown(None, 0)
        backoff = Backoff(_LOOK_PAUSE_S, _LOOK_PAUSE_S, chance=self._chance)
        for look in range(_LOOKS):
            if look:
                await backoff.pause()
            record = await self._api.last_record_of(self._own.issuer)
            place = ChainHead() if record is None else self._own.place_of(record.body)
            sequence = 0 if record is None else record.sequence
            if furthest.place is None or (
                place is not None and place.issuerseq > furthest.place.issuerseq
            ):
                furthest = _Shown(place, sequence)
            if furthest.place is not None and furthest.place.issuerseq >= expected:
                break
        return furthest

    async def _reconcile(self, shown: _Shown) -> None:
        place, standing = shown.place, self.known
        where = f"sequence {shown.sequence} holds"
        if place is not None:
            if await self._file.digest_at(place.issuerseq) not in (place.digest, None):
                raise KeyInUse(self._tell_fork(place.issuerseq, where))
            if place == standing.stored and await self._is_noted(place, shown.sequence):
                return
        try:
            found = await self._held(shown) or await self._by_itself(shown)
        except NotReadable:
            found = await self._by_itself(shown)
        verdict = Verdict.GAP
        if found is not None:
            self._tell_copy(shown, found)
            where = f"sequence {found.sequence} holds"
            verdict = await self._judge(found.place, found.sequence, shown)
        if verdict is Verdict.GAP and self._ask_head is not None:
            body = await self._ask_head(shown.sequence)
            tip = self.known.tip.issuerseq
            told = confirm_place(self._own, body, place or ChainHead(), tip=tip, kept=self.path)
            found, where = Found(told, None), "a tracker's word is for"
            verdict = await self._judge(told, shown.sequence if told == place else None, shown)
        seen = 0 if found is None else found.place.issuerseq
        if verdict is Verdict.GAP:
            raise PlaceLost(self._tell_gap(seen))
        if verdict is Verdict.FORKED:
            raise KeyInUse(self._tell_fork(seen, where))

    async def _held(self, shown: _Shown) -> Found | None:
        """What of ours the stream still holds: how far its chain goes, from where it was left.

        None when where the origin was stored is not known, and nothing behind it is held. Raises
        `Unreachable` and `NotReadable`.
        """
        standing = self.known
        first = standing.origin.issuerseq
        low, high = first, standing.stored.issuerseq + 1
        middle = high - 1  # as a rule nothing is lost
        is_behind = shown.place is None or shown.place.issuerseq < high
        while high - low > 1:
            # copies of one event may cover the sequence where it was, not also the one before it
            before = middle - 1 if is_behind else first
            if await self._still_lies(middle) and (
                before == first or await self._still_lies(before)
            ):
                low = middle
            else:
                high = middle
            middle = (low + high) // 2
        noted = await self.acknowledged(low)
        if low == first and low:
            if noted is None:
                return None
            if not await self._still_lies(low):
                place = shown.place or ChainHead()
                return Found(place if place.issuerseq < low else ChainHead(), None)
        start = ChainHead(low, await self._file.digest_at(low) or "")
        sequence = 0 if noted is None else noted.sequence
        found, furthest = await self._records.follow(start, sequence, shown.sequence)
        return furthest if furthest.place.issuerseq > self.known.tip.issuerseq else found

    async def _by_itself(self, shown: _Shown) -> Found | None:
        """What the last record is worth where what lies before it cannot be seen; None if nothing.

        Sending again what lies behind it is harmless. But the file may be an older copy of itself,
        and what it signs next a fork: so at the first look it must be shown that nothing follows.
        """
        place, standing = shown.place, self.known
        if place is not None:
            seen = place.issuerseq
            noted = await self.acknowledged(seen)
            if (
                self.has_looked
                or seen < standing.origin.issuerseq
                or standing.stored.issuerseq < seen <= standing.tip.issuerseq
                or (seen > standing.tip.issuerseq and self._ask_head is None)
                or (place == standing.stored and noted is None)
                or (noted is not None and noted.sequence == shown.sequence)
            ):
                return Found(place, shown.sequence)
        elif self.has_looked and self._ask_head is None:
            return Found(standing.origin, shown.sequence)
        if self._ask_head is None:
            raise Unreachable(
                f"sequence {shown.sequence} holds no new event of {self._own.issuer}, and what lies "
                f"before it cannot be read: grant it $JS.API.STREAM.MSG.GET.{self._api.stream}, or "
                "start where a tracker answers. Until then nothing is sent"
            )
        return None

    async def _still_lies(self, number: int) -> bool:
        """Whether the event with that number lies where it was stored.

        Of several that were found stored together only the last one's sequence is noted.
        """
        noted = await self.acknowledged(number)
        if (
            noted is None or not noted.sequence
        ):  # by a tracker's word, while the stream held nothing
            return False
        place = await self._records.place_at(noted.sequence)
        return (
            place is not None
            and place.issuerseq >= number
            and await self._is_noted(place, noted.sequence)
        )

    async def _is_noted(self, place: ChainHead, sequence: int) -> bool:
        """Whether the file has `place`, and that it was stored at `sequence`."""
        noted = await self.acknowledged(place.issuerseq)
        kept = await self._file.digest_at(place.issuerseq)
        return kept == place.digest and noted is not None and noted.sequence == sequence

    def _tell_copy(self, shown: _Shown, found: Found) -> None:
        """Log, once, a last record that lies behind the end of our chain."""
        if found.sequence is None or not self._told_copy < shown.sequence > found.sequence:
            return
        self._told_copy = shown.sequence
        if shown.place is None:
            _log.warning("the last record of %s is no event of that key", self._own.issuer)
            return
        told = "sequence %d holds event %d of %s once more: sent late, or stored by someone else"
        _log.warning(told, shown.sequence, shown.place.issuerseq, self._own.issuer)

    async def _judge(self, place: ChainHead, sequence: int | None, shown: _Shown) -> Verdict:
        """Judge how far our chain goes in the stream, and follow it where that is right."""
        async with self._moving:
            standing = self.known
            kept = await self._file.digest_at(place.issuerseq)
            verdict = judge(standing, place, kept, is_first=not self.has_looked)
            seen, stored = place.issuerseq, standing.stored.issuerseq
            if verdict is Verdict.MOVED_ON:
                told = "%s ends at event %d and the stream holds %d: going on from there"
                _log.warning(told, self.path, standing.tip.issuerseq, seen)
                await self._begin_at(place, sequence)
            elif verdict is Verdict.HELD:
                if seen < stored:
                    told = "the stream lost events of %s: %d to %d are sent again"
                    _log.warning(told, self._own.issuer, seen + 1, stored)
                    await self._file.take_back(seen)
                    for number in [n for n in self._unwritten if n > seen]:
                        del self._unwritten[number]
                at = shown.sequence if sequence is None else sequence
                for number in range(stored + 1, seen + 1):
                    self._unwritten[number] = Acknowledged(at, duplicate=True)
                self.standing = replace(standing, stored=place)
        return verdict

    def _move_tip(self, events: Sequence[SignedEvent]) -> None:
        self.standing = replace(self.known, tip=events[-1].head)
        self._newest.extend(events)

    async def _begin_at(self, origin: ChainHead, sequence: int | None) -> None:
        await self._file.begin_at(origin, sequence)
        self._unwritten.clear()
        self._newest.clear()
        self.standing = Standing(origin, origin, origin)

    def _tell_gap(self, seen: int) -> str:
        standing = self.known
        return (
            f"the last event of {self._own.issuer} that the stream shows is {seen}, "
            f"{standing.stored.issuerseq} was acknowledged, and {self.path} keeps none before "
            f"{standing.origin.issuerseq + 1}: the realm lost more than can be sent again. To go on, "
            f"{way_on(standing.tip.issuerseq, self.path)}"
        )

    def _tell_fork(self, seen: int, where: str) -> str:
        standing = self.known
        return (
            f"{where} an event {seen} of {self._own.issuer} that is not in {self.path} (up to "
            f"{standing.tip.issuerseq}, {standing.pending} of them pending): another process has this "
            "key, an operator let its chain start anew, or this file is an older copy of itself. "
            f"Nothing was sent. Stop the other process; if there was none, move {self.path}* away: "
            "the place is then taken from the stream or a tracker, and what is pending is given up. "
            "If it is none of these, the key was stolen: ask an operator to suspend it"
        )
