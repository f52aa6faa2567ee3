"""Finding one's place in the chain when nothing of it is kept: the own last record, then a tracker.

What the bytes that come back are worth is decided in `place`.
"""

import logging

from meshnet_bus.api import StreamApi
from meshnet_bus.client import Unreachable
from meshnet_bus.place import AskHead, OwnEvents, PlaceLost, confirm_place
from meshnet_events.envelope import ChainHead

_READS = 3
_log = logging.getLogger("meshnet_bus")


async def recover_place(
    api: StreamApi, own: OwnEvents, ask_head: AskHead | None = None
) -> ChainHead:
    """Find the place in the chain from the own last record, whose signature is checked.

    Without any record it is the chain's beginning. The last record may be a copy of an earlier
    event, or no event of ours, and an operator may have let the chain start anew; so a tracker is
    asked too where there is one to ask, and if none answers the record decides alone. Raises
    `Unreachable`, and `PlaceLost` when neither shows it.
    """
    place = ChainHead()
    sequence, foreign = 0, False
    for _ in range(_READS):  # replicas may lag: the furthest one counts
        record = await api.last_record_of(own.issuer)
        if record is None:
            continue
        sequence = max(sequence, record.sequence)
        found = own.place_of(record.body)
        foreign = foreign or found is None
        place = max(place, found or place, key=lambda head: head.issuerseq)
    if ask_head is not None:
        try:
            body = await ask_head(sequence)
        except Unreachable as error:
            if foreign:
                raise
            _log.warning("no tracker confirms the place of %s in its chain: %s", own.issuer, error)
        else:
            return confirm_place(own, body, place)
    if foreign:
        raise PlaceLost(
            f"the last record of {own.issuer} is no event that this key signed: someone else writes "
            "to its subject, which an operator must find out and end. A tracker knows the place in "
            "the chain: ask one too"
        )
    return place
