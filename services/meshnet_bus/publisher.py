"""Publishes one issuer's events: signed, in its chain, each stored although acknowledgements get lost.

An event is appended without headers and its acknowledgement awaited. When none comes nobody knows
whether it was stored, so the issuer's own last record is read, and what it shows decides:

    our bytes                     stored: the acknowledgement was lost (`Published.duplicate`)
    an event of ours before it    not stored, or the answer is stale: look again, then send again
    another event of ours there   another process has this key: `KeyInUse`, and nothing more is sent
    no event of ours              as if not stored; the gate refuses whatever it is

Sent twice and stored twice, an event is `replayed` to the gate: harmless. Two *different* events at
one place in the chain would be a fork, so an event that was signed is settled before the next one
is, even after `NotAcknowledged` or a cancelled `publish`; and unless something of ours was
acknowledged a moment ago, the own last record is looked at before sending too.

Signing needs time and chance, which are drawn here. Keeping events over a restart of this process is
the outbox's; what counts as a place in the chain is decided in `place`.
"""

import os
import time
from collections.abc import Callable

import anyio

from meshnet_bus.api import API_PREFIX, ApiError, Published, StreamApi
from meshnet_bus.backoff import Backoff
from meshnet_bus.client import SafeClient, Unreachable
from meshnet_bus.place import AskHead, KeyInUse, OwnEvents
from meshnet_bus.recovery import recover_place
from meshnet_events.envelope import ChainHead, SignedEvent, sign_event
from meshnet_events.facts import Fact
from meshnet_events.keys import EventKey
from meshnet_events.record import Record

_LOOKS_BEFORE_RESEND = 2
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


class NotAcknowledged(Exception):
    """The event may or may not be stored; the next `publish` settles it first."""


class Publisher:
    """Publishes the events of `key`. Calls from several tasks go one after the other."""

    def __init__(
        self,
        nc: SafeClient,
        realm: str,
        key: EventKey,
        *,
        head: ChainHead | None = None,
        ask_head: AskHead | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        chance: Callable[[int], bytes] = os.urandom,
        ack_timeout_s: float = 5.0,
        give_up_after_s: float = 60.0,
        trust_ack_for_s: float = 1.0,
        prefix: str = API_PREFIX,
    ) -> None:
        """Without `head` the place in the chain is recovered at the first use: `recover_place`."""
        self.head = head
        """The chain as far as it is stored; None before it was recovered."""
        self._realm = realm
        self._key = key
        self._own = OwnEvents(realm, key.public)
        self._ask_head = ask_head
        self._api = StreamApi(nc, realm, prefix=prefix, timeout_s=ack_timeout_s)
        self._clock_ms = clock_ms
        self._chance = chance
        self._give_up_after_s = give_up_after_s
        self._trust_ack_for_s = trust_ack_for_s
        self._lock = anyio.Lock()
        self._unsettled: SignedEvent | None = None
        self._key_in_use: str | None = None
        self._trouble = ""
        self._trusted_until = 0.0

    async def resume(self) -> ChainHead:
        """Recover the place in the chain: see `recover_place`."""
        async with self._lock:
            return await self._resume()

    async def publish(self, fact: Fact) -> Published:
        """Sign `fact` as the next event and store it.

        Raises ValueError (the gate would refuse it), `ApiError` (the stream refused it),
        `NotAcknowledged`, `KeyInUse` and, only before anything was sent, `PlaceLost` and
        `Unreachable`.
        """
        async with self._lock:
            head = self.head or await self._resume()
            if self._unsettled is not None:
                await self._settle(self._unsettled, head)
                head = self.head or head
            signed = sign_event(
                fact,
                key=self._key,
                realm=self._realm,
                after=head,
                time_ms=self._clock_ms(),
                chance=self._chance(10),
            )
            self._own.check(signed.body, signature=False)
            return await self._settle(signed, head)

    async def publish_signed(self, signed: SignedEvent) -> Published:
        """Store an event that was signed before, the chain's next one or its last.

        Raises ValueError when it is another, when an event before it is not settled, or when the
        gate would refuse it.
        """
        self._own.check(signed.body)
        async with self._lock:
            head = self.head or await self._resume()
            unsettled = self._unsettled
            if unsettled is not None and unsettled.body != signed.body:
                raise ValueError(f"event {unsettled.head.issuerseq} is not settled yet")
            if signed.head.issuerseq != head.issuerseq + 1 and signed.head != head:
                raise ValueError(
                    f"event {signed.head.issuerseq} does not follow the chain's {head.issuerseq}"
                )
            return await self._settle(signed, head)

    async def _resume(self) -> ChainHead:
        place = await recover_place(self._api, self._own, self._ask_head)
        self.head = place
        return place

    async def _settle(self, signed: SignedEvent, head: ChainHead) -> Published:
        """Send and look until `signed` is stored or time is up."""
        if self._key_in_use:
            raise KeyInUse(self._key_in_use)
        if self._unsettled is not None:  # sent before, and perhaps still on its way
            looks_left = _LOOKS_BEFORE_RESEND
        else:
            looks_left = 0 if anyio.current_time() < self._trusted_until else 1
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, chance=self._chance)
        self._trouble = "no answer"
        with anyio.move_on_after(self._give_up_after_s):
            while True:
                if looks_left == 0:
                    self._unsettled = signed
                    sequence = await self._append(signed)
                    if sequence is not None:
                        self._trusted_until = anyio.current_time() + self._trust_ack_for_s
                        return self._settled(signed, sequence, duplicate=False)
                    looks_left = _LOOKS_BEFORE_RESEND
                else:
                    try:
                        record = await self._api.last_record_of(self._key.public)
                    except Unreachable as error:
                        self._trouble = str(error)
                    else:
                        looks_left -= 1
                        if record is not None and self._holds(record, signed, head):
                            return self._settled(signed, record.sequence, duplicate=True)
                await backoff.pause()
        where = f"event {signed.head.issuerseq} of {self._key.public}"
        within = f"within {self._give_up_after_s:g} s ({self._trouble})"
        if self._unsettled is None:
            raise Unreachable(f"{where} could not be sent {within}")
        raise NotAcknowledged(f"{where} was not acknowledged {within} and may or may not be stored")

    async def _append(self, signed: SignedEvent) -> int | None:
        """Send once. None when it is not known to be stored."""
        try:
            return await self._api.append(self._key.public, signed.body)
        except Unreachable as error:
            self._trouble = str(error)
            return None
        except ApiError:
            self._unsettled = None  # a refusal is certain: the place in the chain is free
            raise

    def _settled(self, signed: SignedEvent, sequence: int, *, duplicate: bool) -> Published:
        self.head = signed.head
        self._unsettled = None
        return Published(sequence, signed.head.digest, duplicate)

    def _holds(self, record: Record, signed: SignedEvent, head: ChainHead) -> bool:
        """Whether the own last record is `signed`; raises `KeyInUse` when the chain forked there."""
        if record.body == signed.body:
            return True
        place = self._own.place_of(record.body)
        if place is not None and (
            place.issuerseq > head.issuerseq
            or (place.issuerseq == head.issuerseq and place.digest != head.digest)
        ):
            self._key_in_use = (
                f"sequence {record.sequence} holds event {place.issuerseq} of {self._key.public}, "
                f"which this process did not write (it is at {head.issuerseq}): another process has "
                "this key. Stop one of them; if none is yours, the key was "
                "stolen: ask an operator to suspend it"
            )
            raise KeyInUse(self._key_in_use)
        return False
