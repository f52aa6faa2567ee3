"""Which files two shards hold, as their registrations say: the records themselves, read again.

The registry's rows keep what decides, and the digest of a cut's own bytes decides nothing: shards of one
recipe hold different files. Whoever compares two asks for what is in the log, in the history that was
named or from the server. A record is believed if it is the one that was folded: soundly signed by that
node, of that shard and boot, and its block gives the same identity.
"""

from collections.abc import Iterable
from itertools import islice

import anyio
import msgspec
from msgspec import Struct

from meshnet_bus.api import ApiError, StreamApi
from meshnet_bus.client import Unreachable, closing, connect
from meshnet_cli.options import Source
from meshnet_cli.profile import settle
from meshnet_cli.state_source import CLIENT_NAME, history
from meshnet_events.facts import ShardRegistered
from meshnet_events.gate import Gate
from meshnet_events.reasons import Refusal
from meshnet_events.record import Record
from meshnet_tracker.registry.identity import IdentityReader
from meshnet_tracker.registry.rows import Claim
from meshnet_tracker.registry.state import State


class HeldFile(Struct, frozen=True):
    """What a shard's files are: their digest and, where they are a cut, its layers `[start, end)`."""

    content_digest: str
    cut: tuple[int, int] | None


def held_files(
    source: Source, state: State, left: Claim, right: Claim
) -> tuple[HeldFile, HeldFile] | None:
    """What two claims of sound identity hold; None where their records are not to be had."""
    claims = (left, right)
    sequences = {claim.sequence for claim in claims}
    if source.from_ is not None:
        with history(source.from_) as records:
            upto = islice(records, max(sequences))
            found = {one.sequence: one for one in upto if one.sequence in sequences}
    else:
        found = anyio.run(_from_stream, source, state.name, sequences)
    held = [held_file(state.name, claim, found.get(claim.sequence)) for claim in claims]
    match held:
        case [HeldFile() as ours, HeldFile() as theirs]:
            return ours, theirs
    return None


async def _from_stream(source: Source, realm: str, sequences: Iterable[int]) -> dict[int, Record]:
    settings = settle(source, realm=realm)
    if settings.server is None:
        return {}
    try:
        async with closing(await connect(settings.server, name=CLIENT_NAME)) as nc:
            api = StreamApi(nc, realm)
            read = [await api.leader_record(sequence) for sequence in sequences]
    except (ApiError, Unreachable):  # views were read: they need no server
        return {}
    return {record.sequence: record for record in read if record is not None}


def held_file(realm: str, claim: Claim, record: Record | None) -> HeldFile | None:
    """What a claim holds, as its record says; None if that is not the record that was folded."""
    if record is None:
        return None
    event = Gate(realm).screen(record.body, record.subject).verified()
    if (
        isinstance(event, Refusal)
        or not isinstance(event.data, ShardRegistered)
        or (event.issuer, event.data.shard_id, event.data.boot_id)
        != (claim.node, claim.shard_id, claim.boot_id)
        or IdentityReader().read(event.identity) != claim.identity
    ):
        return None
    # the reader has found every member of it sound
    artifact = msgspec.json.decode(event.identity)["artifact"]
    binding = artifact.get("derived_from")
    return HeldFile(
        artifact["content_digest"],
        (binding["shard_start"], binding["shard_end"]) if binding else None,
    )
