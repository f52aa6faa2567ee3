"""Presence: a node's word that it is alive, sent every few seconds and kept by nobody.

It goes over core NATS on `mesh.<realm>.presence.<issuer>`, unsigned: the broker, which checked the
login, vouches for the subject, and the subject names the issuer. It decides liveness and nothing
else, so it is no event, enters no log and changes no digest. For example:

    {"boot_id":"3769e4f9-167b-4492-993b-0bd3a15e3b5a","load":120,"shards":["main"]}

`load` runs from 0 (idle) to 1000 (full). `envelope.canonical` writes one; order and white space do
not matter to a reader. Left out: how often it is sent, and for how long one counts.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from meshnet_events.forms import SHARD_ID_PATTERN, ShardId, Uuid, is_shard_id, is_uuid

MAX_PRESENCE = 4_096


class Presence(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which boot is alive, how busy it is, and which of its shards it can serve now."""

    boot_id: Uuid
    load: Annotated[int, Meta(ge=0, le=1000)]
    shards: tuple[ShardId, ...]

    def __post_init__(self) -> None:
        if not is_uuid(self.boot_id):
            raise ValueError("boot_id: expected a UUID")
        if not all(map(is_shard_id, self.shards)):
            raise ValueError(f"shards: expected {SHARD_ID_PATTERN} each")


_decode = msgspec.json.Decoder(Presence).decode


def decode_presence(body: bytes) -> Presence | None:
    """Read a presence body, or give None for anything else. Never raises."""
    if len(body) > MAX_PRESENCE:
        return None
    try:
        return _decode(body)
    except msgspec.MsgspecError:
        return None
