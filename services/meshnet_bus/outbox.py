"""A node's events: handed over once, kept through crashes, stored exactly once and in order.

    async with Outbox.open(path, nc, realm, key) as outbox, anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run)
        handed = await outbox.hand(fact)            # on the disk: it will be stored
        published = await outbox.stored(handed)     # it is

`hand` signs a fact as the chain's next event and returns once the file holds it, synced
(`outbox_file`); facts handed together share one commit. It needs no server unless the file is new.
`run` sends what is pending, one event at a time, each acknowledged before the next.

The own last record of the stream is looked at when the outbox is opened, after an outage, when an
acknowledgement did not come, and before sending unless something was acknowledged a moment ago. What
it shows, and that bytes acknowledged are sent again when the realm lost its tail, is `kept_chain`'s.

Sending twice what is stored already is harmless (`replayed`), so a stale answer of a replica never
costs more than that. What would not be harmless, a second event at a place where we signed one, is
kept from happening by the file alone: there is one, one process has it open, and nothing is sent
that it does not hold.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import anyio
from msgspec import Struct

from meshnet_bus.api import API_PREFIX, ApiError, Published, StreamApi
from meshnet_bus.backoff import Backoff
from meshnet_bus.client import SafeClient, Unreachable
from meshnet_bus.kept_chain import KeptChain
from meshnet_bus.outbox_file import OutboxError, OutboxFull
from meshnet_bus.place import AskHead, KeyInUse, OwnEvents, PlaceLost
from meshnet_events.envelope import ChainHead, SignedEvent, sign_event
from meshnet_events.facts import Fact
from meshnet_events.keys import EventKey

KEEP_ACKNOWLEDGED_MS = 7 * 24 * 3_600_000
"""How long acknowledged events are kept, in ms.

A realm loses its tail when its store is restored from an older copy. Copies are made daily where they
are made at all; after a week without a fresh one, `node.enrolled` with `chain_from` is the way on. A
busy node's week is some thousand events: a few MB.
"""

_PRUNE_STEP = 500
_PRUNE_EVERY_S = 3_600.0
_COMMITTED_TOGETHER = 256
_READ_TOGETHER = 64
_WRITTEN_TOGETHER = 256
_TRUST_ACK_FOR_S = 1.0
_IDLE_S = 1.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0  # after an outage ten thousand nodes come back within it, not at once
_log = logging.getLogger("meshnet_bus")


class OutboxStopped(OutboxError):
    """`run` ended for good; its error is the cause. What was handed stays in the file."""


class Handed(Struct, frozen=True):
    """An event that will be stored: its number in the chain, and its digest."""

    issuerseq: int
    digest: str


class _Asked:
    """A fact that waits for its commit, and what became of it."""

    __slots__ = ("fact", "outcome")

    def __init__(self, fact: Fact) -> None:
        self.fact = fact
        self.outcome: Handed | Exception | None = None


class Outbox:
    """The events of one key on their way into one realm's stream. Made by `Outbox.open`."""

    def __init__(
        self,
        chain: KeptChain,
        api: StreamApi,
        own: OwnEvents,
        key: EventKey,
        *,
        clock_ms: Callable[[], int],
        chance: Callable[[int], bytes],
    ) -> None:
        """Use `Outbox.open`."""
        self.trouble = ""
        """Why nothing can be sent at present; empty when nothing is in the way."""
        self._chain = chain
        self._api = api
        self._own = own
        self._key = key
        self._clock_ms = clock_ms
        self._chance = chance
        self._handing = anyio.Lock()
        self._asked: list[_Asked] = []
        self._work = anyio.Event()
        self._progress = anyio.Event()
        self._waiting: dict[int, anyio.Event] = {}
        self._must_look = True
        self._in_flight = 0
        self._outages = api.nc.outages
        self._trusted_until = 0.0
        self._prune_at = 0.0
        self._stopped: Exception | None = None
        self._is_running = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        nc: SafeClient,
        realm: str,
        key: EventKey,
        *,
        ask_head: AskHead | None = None,
        operators: Collection[str] = (),
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        chance: Callable[[int], bytes] = os.urandom,
        ack_timeout_s: float = 5.0,
        prefix: str = API_PREFIX,
    ) -> AsyncIterator[Self]:
        """Open the outbox of `key` at `path`, a new one if there is no file.

        Where the server answers, the file is compared with the stream at once, so `KeyInUse` and
        `PlaceLost` are raised here. Raises `OutboxInUse` when another process has it open, and
        `OutboxError` for a file that is damaged or of another key or realm.

        `ask_head` (`asker.ask_head`) and `operators` (keys that may let our chain start anew, with
        `chain_from`) help when the stream does not show the place: see `place`.
        """
        api = StreamApi(nc, realm, prefix=prefix, timeout_s=ack_timeout_s)
        own = OwnEvents(realm, key.public, operators=operators)
        async with KeptChain.open(path, api, own, ask_head=ask_head, chance=chance) as chain:
            outbox = cls(chain, api, own, key, clock_ms=clock_ms, chance=chance)
            try:
                await outbox._look()
            except Unreachable as error:
                outbox.trouble = str(error)
            try:
                yield outbox
            finally:
                await outbox._close()

    @property
    def head(self) -> ChainHead | None:
        """The last event handed; None while the place in the chain is not known."""
        standing = self._chain.standing
        return None if standing is None else standing.tip

    @property
    def pending(self) -> int:
        """How many events are handed and not acknowledged."""
        standing = self._chain.standing
        return 0 if standing is None else standing.pending

    async def hand(self, fact: Fact) -> Handed:
        """Sign `fact` as the next event and keep it.

        It will be stored, however often this process is restarted. Raises ValueError (the gate
        would refuse it), `OutboxFull`, after `KeyInUse` or `PlaceLost` `OutboxStopped`, and only
        with a new file `Unreachable` or `PlaceLost`: then nothing was handed. Cancelled, it may
        have been.
        """
        asked = _Asked(fact)
        self._asked.append(asked)
        try:
            async with self._handing:
                if asked.outcome is None:
                    await self._hand_those_asked()
        finally:
            if asked.outcome is None:  # cancelled before its turn
                self._asked.remove(asked)
        if isinstance(asked.outcome, Handed):
            return asked.outcome
        raise asked.outcome or RuntimeError("whoever had the lock settles everyone's outcome")

    async def stored(self, handed: Handed) -> Published:
        """Wait until the event is acknowledged. The caller bounds it.

        Of several events that were found stored together the sequence is that of the last: none of
        them lies behind it. Raises `OutboxStopped`, and LookupError for one that is not kept.
        """
        number = handed.issuerseq
        while True:
            standing = self._chain.standing
            if standing is None or number > standing.tip.issuerseq:
                raise LookupError(f"event {number} was not handed to {self._chain.path}")
            if number > standing.stored.issuerseq:
                self._check_running()
                await self._waiting.setdefault(number, anyio.Event()).wait()
                continue
            found = await self._chain.acknowledged(number)
            if found is not None:
                return Published(found.sequence, handed.digest, found.duplicate)
            if number <= self._chain.known.origin.issuerseq:
                raise LookupError(f"event {number} is stored, and not in {self._chain.path}")

    async def drained(self) -> None:
        """Wait until everything handed is acknowledged, and the stream was seen to hold it.

        The caller bounds it. Raises `OutboxStopped`.
        """
        while self.pending or not self._chain.has_looked:
            self._check_running()
            await self._progress.wait()

    async def run(self) -> None:
        """Send what is handed, in order, for ever, across outages. One task does this.

        Raises `KeyInUse`, `PlaceLost`, `ApiError` (the stream refused an event for certain) and
        `OutboxError`. What is pending stays so, and `run` may be called again.
        """
        if self._is_running:
            raise RuntimeError("this outbox is being run already")
        self._is_running, self._stopped, self._must_look = True, None, True
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, chance=self._chance)
        try:
            while True:
                try:
                    await self._turn()
                except (Unreachable, OutboxFull) as error:
                    if not self.trouble:
                        told = "%s holds %d unsent: %s"
                        _log.warning(told, self._chain.path, self.pending, error)
                    self.trouble = str(error)
                    await backoff.pause()
                else:
                    self.trouble = ""
                    backoff.reset()
        except (KeyInUse, PlaceLost, ApiError, OutboxError) as error:
            self._stopped, self.trouble = error, str(error)
            self._wake(everyone=True)
            raise
        finally:
            self._is_running = False

    async def _turn(self) -> None:
        """Look if there is a reason to, then send a few events, or wait a second for some."""
        if self._has_reason_to_look():
            await self._look()
        idle = None
        if self.pending:
            for event in await self._chain.next_events(_READ_TOGETHER):
                await self._send(event)
                if self._has_reason_to_look():
                    break
        else:
            self._work = anyio.Event()
            with anyio.move_on_after(_IDLE_S) as idle:
                await self._work.wait()
        if self._chain.unwritten >= _WRITTEN_TOGETHER or (idle and idle.cancelled_caught):
            await self._chain.write_acknowledgements(self._clock_ms())
        if anyio.current_time() >= self._prune_at:
            before_ms = self._clock_ms() - KEEP_ACKNOWLEDGED_MS
            if not await self._chain.prune(before_ms=before_ms, limit=_PRUNE_STEP):
                self._prune_at = anyio.current_time() + _PRUNE_EVERY_S

    def _has_reason_to_look(self) -> bool:
        return (
            self._must_look
            or self._outages != self._api.nc.outages
            or (self.pending > 0 and anyio.current_time() >= self._trusted_until)
        )

    async def _look(self) -> None:
        outages, standing = self._api.nc.outages, self._chain.standing
        stored = 0 if standing is None else standing.stored.issuerseq
        await self._chain.look(expected=max(stored, self._in_flight))
        self._in_flight, self._must_look, self._outages = 0, False, outages
        self._trusted_until = anyio.current_time() + _TRUST_ACK_FOR_S
        self._wake()

    async def _send(self, event: SignedEvent) -> None:
        self._chain.prove(event)
        self._in_flight, self._must_look = event.head.issuerseq, True
        try:
            sequence = await self._api.append(self._key.public, event.body)
        except ApiError:
            self._in_flight = 0  # a refusal is certain
            raise
        self._in_flight, self._must_look = 0, False
        self._trusted_until = anyio.current_time() + _TRUST_ACK_FOR_S
        self._chain.acknowledge(event.head, sequence)
        self._wake()

    async def _hand_those_asked(self) -> None:
        """Sign and commit what was asked so far; everyone's outcome is then settled."""
        asked = self._asked[:_COMMITTED_TOGETHER]
        try:
            if isinstance(self._stopped, KeyInUse | PlaceLost):
                raise OutboxStopped(f"nothing more is signed: {self._stopped}") from self._stopped
            await self._chain.begin()
            with anyio.CancelScope(shield=True):
                await self._sign_and_keep(asked)
        except (Unreachable, ApiError, PlaceLost, OutboxError) as error:
            for one in asked:
                one.outcome = one.outcome or error
        finally:
            self._asked = [one for one in self._asked if one.outcome is None]

    async def _sign_and_keep(self, asked: list[_Asked]) -> None:
        """Give every fact its place and commit them together: all that the gate would let through."""
        now_ms = self._clock_ms()
        signed: list[tuple[_Asked, SignedEvent]] = []

        def sign_all(head: ChainHead) -> list[SignedEvent]:
            for one in asked:
                try:
                    event = self._sign(one.fact, head, now_ms)
                except ValueError as error:
                    one.outcome = error
                else:
                    head = event.head
                    signed.append((one, event))
            return [event for _, event in signed]

        try:
            await self._chain.append(sign_all, now_ms)
        finally:
            if signed and signed[-1][1].head == self._chain.known.tip:
                for one, event in signed:
                    one.outcome = Handed(event.head.issuerseq, event.head.digest)
                self._work.set()

    def _sign(self, fact: Fact, after: ChainHead, now_ms: int) -> SignedEvent:
        """The event that follows `after`. Raises ValueError for what the gate would refuse."""
        signed = sign_event(
            fact,
            key=self._key,
            realm=self._api.realm,
            after=after,
            time_ms=now_ms,
            chance=self._chance(10),
        )
        self._own.check(signed.body, signature=False)
        return signed

    def _wake(self, *, everyone: bool = False) -> None:
        """Let those go on who wait for what is stored now, or everyone."""
        standing = self._chain.standing
        stored = 0 if standing is None else standing.stored.issuerseq
        for number in [n for n in self._waiting if everyone or n <= stored]:
            self._waiting.pop(number).set()
        self._progress.set()
        self._progress = anyio.Event()

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise OutboxStopped(
                f"nothing more is sent: {self._stopped}. What was handed stays in {self._chain.path}"
            ) from self._stopped

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._chain.write_acknowledgements(self._clock_ms())
            except OutboxError as error:  # looking at the stream will tell them again
                _log.warning("closing %s: %s", self._chain.path, error)
