"""Finding one's place in the chain: in the stream, or by a tracker's word.

`find_place` is for whoever keeps nothing of the chain: the own last record, then a tracker. What the
bytes that come back are worth is decided in `place`. `OwnRecords` is for whoever knows where an event
of ours was stored: it reads what lies there, and follows the chain from there as every reader does.
"""

import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from meshnet_bus.api import ApiError, StreamApi
from meshnet_bus.backoff import Backoff
from meshnet_bus.client import Unreachable
from meshnet_bus.place import AskHead, OwnEvents, PlaceLost, confirm_place
from meshnet_events.envelope import ChainHead
from meshnet_events.record import Record
from meshnet_events.screened import follow

_READS = 3
_READ_PAUSE_S = 0.1
_log = logging.getLogger("meshnet_bus")


class Found(Struct, frozen=True):
    """A place in the chain, and the sequence at which its event lies; None where that is not known."""

    place: ChainHead
    sequence: int | None


class NotReadable(Exception):
    """The stream's leader does not let us read by sequence."""


class OwnRecords:
    """Reads one issuer's records from the stream's leader.

    A read that is not granted gets no answer, and neither does one that meets an election of the
    leader. So one answer proves the grant: from then on no answer is `Unreachable`, which means try
    again. Before it, and several tries, it is `NotReadable`.
    """

    def __init__(self, api: StreamApi, own: OwnEvents, *, chance: Callable[[int], bytes]) -> None:
        self._api = api
        self._own = own
        self._chance = chance
        self._is_granted = False

    async def place_at(self, sequence: int) -> ChainHead | None:
        """The place of the event of ours at `sequence`; None if there is none."""
        record = await self._read(lambda: self._api.leader_record(sequence))
        # under another subject anyone may store a copy at the sequence where a lost event was
        if record is None or record.subject != self._own.subject:
            return None
        return self._own.place_of(record.body)

    async def follow(self, place: ChainHead, sequence: int, until: int) -> tuple[Found, Found]:
        """Follow the chain from `place`, which lies at `sequence`, through our records up to `until`.

        Gives how far it goes, and the furthest event of ours on the way, which may lie behind a gap.
        """
        found = furthest = Found(place, sequence)
        while sequence < until:
            after = sequence + 1
            record = await self._read(lambda: self._api.leader_record_of(self._own.issuer, after))  # noqa: B023 - awaited at once
            if record is None:
                break
            sequence = record.sequence
            event = self._own.read(record.body)
            if event is None:
                continue
            place = ChainHead(event.issuerseq, event.digest)
            if place.issuerseq > furthest.place.issuerseq:
                furthest = Found(place, sequence)
            if follow(found.place, event) == place:
                found = Found(place, sequence)
        return found, furthest

    async def _read(self, ask: Callable[[], Awaitable[Record | None]]) -> Record | None:
        nc = self._api.nc
        outages = nc.outages
        backoff = Backoff(_READ_PAUSE_S, _READ_PAUSE_S, chance=self._chance)
        for _ in range(_READS):
            try:
                record = await ask()
            except (ApiError, Unreachable) as error:
                if self._is_granted or outages != nc.outages or not nc.is_connected:
                    raise Unreachable(f"the leader of {self._api.stream}: {error}") from error
                await backoff.pause()
            else:
                self._is_granted = True
                return record
        raise NotReadable(self._api.stream)


async def recover_place(
    api: StreamApi, own: OwnEvents, ask_head: AskHead | None = None
) -> ChainHead:
    """Find the place in the chain: see `find_place`."""
    return (await find_place(api, own, ask_head)).place


async def find_place(api: StreamApi, own: OwnEvents, ask_head: AskHead | None = None) -> Found:
    """Find the place in the chain from the own last record, whose signature is checked.

    Without any record it is the chain's beginning. The last record may be a copy of an earlier
    event, or no event of ours, and an operator may have let the chain start anew; so a tracker is
    asked too where there is one to ask, and if none answers the record decides alone. Raises
    `Unreachable`, and `PlaceLost` when neither shows it.
    """
    shown = Found(ChainHead(), 0)
    sequence, foreign = 0, False
    for _ in range(_READS):  # replicas may lag: the furthest one counts
        record = await api.last_record_of(own.issuer)
        if record is None:
            continue
        sequence = max(sequence, record.sequence)
        place = own.place_of(record.body)
        foreign = foreign or place is None
        if place is not None and place.issuerseq > shown.place.issuerseq:
            shown = Found(place, record.sequence)
    if ask_head is not None:
        try:
            body = await ask_head(sequence)
        except Unreachable as error:
            if foreign:
                raise
            _log.warning("no tracker confirms the place of %s in its chain: %s", own.issuer, error)
        else:
            told = confirm_place(own, body, shown.place)
            return shown if told == shown.place else Found(told, None)
    if foreign:
        raise PlaceLost(
            f"the last record of {own.issuer} is no event that this key signed: someone else writes "
            "to its subject, which an operator must find out and end. A tracker knows the place in "
            "the chain: ask one too"
        )
    return shown
