"""Reads a realm's stream: every record once, in sequence order, from any position, for ever.

    async with Reader(nc, realm, expect=folded) as reader:
        async for batch in reader.batches():
            fold(batch)                          # and commit it together with reader.folded

Catching up and following are one loop with no seam between. Everything happens inside `batches`, in
the caller's task: while the caller is busy with a batch nothing is asked for or handed out, so a
slow one makes the server wait and memory stays bounded (`feed`).

    starting -> reading <-> recovering         a feed broke: look at the history, open a new feed
        `----------+-----------'---> faulted   the history is not the one that was read: for good

*Recovering* covers a server restart, a lost connection or consumer, a paused server and a gap. It
takes as long as it takes, or `give_up_after_s` where somebody waits for the end (`read_until`);
before anything is handed out again the history is verified (`history.verify`), as it is at the
start and every `check_every_s`. What had arrived and was not handed out is read again. A gap that a
new feed shows again is filled record by record.
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from typing import Literal, Self

import anyio

from meshnet_bus.api import API_PREFIX, STREAM_NOT_FOUND, ApiError, StreamApi
from meshnet_bus.client import SafeClient, Unreachable
from meshnet_bus.feed import IDLE_HEARTBEAT_S, Feed, open_feed
from meshnet_bus.history import (
    FaultReason,
    FoldedPosition,
    HistoryFault,
    record_digest,
    verify,
)
from meshnet_bus.stream import StreamState, read_state
from meshnet_events.record import Record

WINDOW = 8_192
"""The most records in a batch, and the most on their way behind it."""
LARGE = 4_096
"""Where a large batch ends, give or take a window."""
_LARGE_BYTES = 16 * 2**20
_LARGE_S = 0.1
_SILENCE_S = 3 * IDLE_HEARTBEAT_S
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_ONE_SHOT_PATIENCE_S = 30.0
_jitter = random.SystemRandom()

ReaderState = Literal["starting", "reading", "recovering", "faulted"]


class Reader:
    """Reads the stream of `realm` behind `after`, or behind the position that `expect` was folded to.

    With `until` it ends there; without, it follows for ever. An async context manager, for one
    iteration of `batches` or `large_batches`.
    """

    def __init__(
        self,
        nc: SafeClient,
        realm: str,
        *,
        after: int = 0,
        expect: FoldedPosition | None = None,
        until: int | None = None,
        window: int = WINDOW,
        check_every_s: float = 30.0,
        request_timeout_s: float = 5.0,
        give_up_after_s: float | None = None,
        prefix: str = API_PREFIX,
    ) -> None:
        """Raise ValueError when `after` and `expect` name different positions.

        An outage is waited out, or given up after `give_up_after_s` in which nothing came.
        """
        if expect is not None and after not in (0, expect.sequence):
            raise ValueError(f"after is {after}; expect was folded to {expect.sequence}")
        self.position = expect.sequence if expect else after
        """Sequence of the last record handed out."""
        self.last_known = 0
        """The highest sequence that the stream was heard to hold."""
        self.state: ReaderState = "starting"
        self.fault: HistoryFault | None = None
        self.recoveries = 0
        """How often a feed broke."""
        self.filled = 0
        """Records that no feed delivered and that were read one by one."""
        self._nc = nc
        self._api = StreamApi(nc, realm, prefix=prefix, timeout_s=request_timeout_s)
        self._until = until
        self._window = window
        self._check_every_s = check_every_s
        self._give_up_after_s = math.inf if give_up_after_s is None else give_up_after_s
        self._known = expect
        self._last: Record | None = None
        self._feed: Feed | None = None
        self._gap_at: int | None = None
        self._hole: int | None = None
        self._trouble = ""
        self._check_at = 0.0
        self._hold_until = math.inf  # when `large_batches` lets go of what it holds

    @property
    def caught_up(self) -> bool:
        """Whether everything that the stream was heard to hold has been handed out."""
        return self.state == "reading" and self.position >= self.last_known

    @property
    def folded(self) -> FoldedPosition | None:
        """What `expect` must be to go on from here; None before the stream was first looked at."""
        if self._known is not None and self._last is not None:
            self._known = FoldedPosition(
                self._known.created, self._last.sequence, record_digest(self._last)
            )
            self._last = None
        return self._known

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drop_feed()

    async def batches(self) -> AsyncIterator[list[Record]]:
        """Hand out what has arrived, as soon as there is something: 1 to `window` records.

        Raises `HistoryFault` once the history is another, and `Unreachable` when the client was
        closed for good or `give_up_after_s` is over. Everything else it waits out.
        """
        clock = asyncio.get_running_loop().time
        quiet_since = heard_at = clock()
        while self._until is None or self.position < self._until:
            feed = self._feed
            if feed is None:
                if self._hold_until < math.inf:
                    yield []  # to `large_batches`: nothing more for now
                filled = await self._recover(heard_at)
                quiet_since = clock()
                if filled:
                    yield self._hand_out(filled)
                    heard_at = clock()
                continue
            if clock() >= self._check_at and not await self._still_the_same():
                continue
            feed.arrived.clear()
            if batch := feed.take():
                quiet_since = clock()
                self.last_known = max(self.last_known, feed.last_known)
                batch = self._hand_out(batch)
                await self._ask(feed)
                yield batch
                # the caller's time is not the server's silence
                quiet_since = heard_at = clock()
                continue
            if feed.heard:
                feed.heard = False
                quiet_since = heard_at = clock()
            if feed.broken or clock() >= quiet_since + _SILENCE_S:
                self._note_gap(feed.gap_until)
                await self._drop_feed()
            elif clock() >= self._hold_until:
                yield []
            else:
                await self._ask(feed)
                await _wait(
                    feed.arrived,
                    min(self._check_at, quiet_since + _SILENCE_S, self._hold_until),
                )

    async def large_batches(self) -> AsyncIterator[list[Record]]:
        """`batches`, put together while there is more: for whoever does best with much at a time.

        Up to `LARGE` records, 16 MiB of them, or what came in a tenth of a second; what is the
        last there is, at once.
        """
        clock = asyncio.get_running_loop().time
        together: list[Record] = []
        size = 0
        async for batch in self.batches():
            if not together:
                self._hold_until = clock() + _LARGE_S
            together += batch
            size += sum([len(record.body) for record in batch])
            if (
                not batch  # nothing more came, while something was held
                or self.caught_up
                or len(together) >= LARGE
                or size >= _LARGE_BYTES
                or clock() >= self._hold_until
            ):
                self._hold_until = math.inf
                yield together
                together, size = [], 0
        if together:
            yield together

    def _hand_out(self, batch: list[Record]) -> list[Record]:
        """Advance to the end of `batch`, the records right behind the position."""
        if self._until is not None and batch[-1].sequence > self._until:
            del batch[self._until - self.position :]
        self._last = batch[-1]
        self.position = self._last.sequence
        return batch

    async def _ask(self, feed: Feed) -> None:
        try:
            await feed.ask()
        except Unreachable:
            feed.lost()

    async def _still_the_same(self) -> bool:
        """Look at the history again while reading. False when it could not be looked at."""
        try:
            state = await self._verify()
        except Unreachable:
            self._note_gap(None)
            await self._drop_feed()
            return False
        self.last_known = max(self.last_known, state.last_sequence)
        return True

    def _note_gap(self, until: int | None) -> None:
        """Remember where a feed had a gap: the second there in a row is filled up to `until`."""
        self._hole = until if self._gap_at == self.position else None
        self._gap_at = None if until is None else self.position

    async def _recover(self, heard_at: float) -> list[Record]:
        """Verify the history, then open a feed behind the position, or fill a hole there.

        Tries until it works. Raises `HistoryFault`, or `Unreachable` once the client is closed or
        nothing has come for too long since `heard_at`.
        """
        if self.state == "reading":
            self.state = "recovering"
            self.recoveries += 1
        self._trouble = "no answer"
        with anyio.CancelScope(deadline=heard_at + self._give_up_after_s):
            return await self._try_to_recover()
        raise Unreachable(
            f"nothing came from {self._api.stream} behind {self.position} "
            f"within {self._give_up_after_s:g} s ({self._trouble})"
        )

    async def _try_to_recover(self) -> list[Record]:
        pause_s = _FIRST_PAUSE_S
        while True:
            outages = self._nc.outages
            try:
                state = await self._verify()
                if self._hole is not None:
                    return await self._fill(self._hole)
                feed = await open_feed(self._api, after=self.position, window=self._window)
            except Unreachable as error:
                if self._nc.is_closed:
                    raise
                self._trouble = str(error)
                await anyio.sleep(pause_s * _jitter.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            except ApiError as error:
                if error.err_code != STREAM_NOT_FOUND:
                    raise
                continue  # gone since the look at the history: the next one says so
            self._feed = feed
            if outages == self._nc.outages:
                self.last_known = state.last_sequence
                self.state = "reading"
                return []
            # between the two the server may have come back with another history
            await self._drop_feed()

    async def _verify(self) -> StreamState:
        try:
            state = await verify(self._api, self.position, self.folded)
            if self._known is None:
                self._known = await self._recognise(state)
        except HistoryFault as fault:
            self.state = "faulted"
            self.fault = fault
            raise
        self._check_at = asyncio.get_running_loop().time() + self._check_every_s
        return state

    async def _recognise(self, state: StreamState) -> FoldedPosition:
        """What the caller could not tell: the history as it is now is the one from here on."""
        if self.position == 0:
            return FoldedPosition(state.created, 0, "")
        record = await self._read_one(self.position)
        return FoldedPosition(state.created, self.position, record_digest(record))

    async def _fill(self, until: int) -> list[Record]:
        """Read what feeds do not deliver, one by one: up to `until`, at most a window."""
        self._hole = None
        first = self.position + 1
        records = [
            await self._read_one(sequence)
            for sequence in range(first, min(until, first + self._window))
        ]
        self.filled += len(records)
        return records

    async def _read_one(self, sequence: int) -> Record:
        record = await self._api.direct_record(sequence) or await self._api.leader_record(sequence)
        if record is None:
            raise HistoryFault(
                FaultReason.MISSING_RECORDS, f"{self._api.stream} has no record {sequence}"
            )
        return record

    async def _drop_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.close()


async def read_until(
    nc: SafeClient,
    realm: str,
    until: int | None = None,
    *,
    give_up_after_s: float = _ONE_SHOT_PATIENCE_S,
) -> Reader:
    """Make a reader that ends at `until`, by default at what is now the stream's last record.

    Somebody waits for it, so it gives up on an outage. Raises ValueError when the stream does not
    reach `until`: it would be waited for.
    """
    last = (await read_state(StreamApi(nc, realm))).last_sequence
    if until is not None and until > last:
        raise ValueError(f"the stream ends at {last}; cannot replay up to {until}")
    end = last if until is None else until
    return Reader(nc, realm, until=end, give_up_after_s=give_up_after_s)


async def _wait(event: asyncio.Event, at: float) -> None:
    """Wait for `event`, at most until the loop's clock shows `at`. Costs less than a time-out."""
    timer = asyncio.get_running_loop().call_at(at, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
