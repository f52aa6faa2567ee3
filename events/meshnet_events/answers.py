"""What a tracker answers to a query: a verdict as of a sequence, and no evidence.

Members that are not known are ignored, so that a tracker may learn to say more; the parts that come
from facts (`fingerprint`, `host`) have exactly their members. Every text is bounded, a recipe key
follows from the fingerprint beside it, and a route leaves out no layer.

Left out: what is asked, how it travels, and whether an answer is one to its question (`queries`).
"""

from itertools import pairwise
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from meshnet_events.facts import Fingerprint, Host, recipe_key
from meshnet_events.forms import (
    Count,
    Digest,
    Endpoint,
    Integer,
    JsonObject,
    PublicKey,
    ShardId,
    ShortText,
    Text,
    Uuid,
    is_endpoint,
    is_hex,
    is_key,
    is_object,
    is_shard_id,
    is_uuid,
)

MAX_SHARDS = 256
MAX_REASONS = 32
MAX_OBSTACLES = 64
MAX_LONG_TEXT = 4_096

Purpose = Literal["serve", "certify"]
Layer = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""The index of a layer, or a number of layers, as a session can carry it."""
LongText = Annotated[str, Meta(max_length=MAX_LONG_TEXT)]
"""A text that may list nodes, layers or seams."""


def fitted(text: str) -> LongText:
    """`text`, cut and with an ellipsis where it is longer than a `LongText` may be."""
    return text if len(text) <= MAX_LONG_TEXT else f"{text[: MAX_LONG_TEXT - 1]}…"


def _check_form(is_right: bool, member: str) -> None:  # noqa: FBT001 - what was checked, then where
    if not is_right:
        raise ValueError(f"{member}: not of its form")


def _check_fingerprint(fingerprint: Fingerprint | None, key: str | None) -> None:
    """Raise ValueError unless `key` is the recipe key of `fingerprint`; where there is none, of none."""
    if fingerprint is None:
        if key is not None:
            raise ValueError("recipe_key: expected null, as fingerprint is")
        return
    artifact, recipe = fingerprint.model_artifact_digest, fingerprint.runtime_recipe_digest
    _check_form(is_hex(artifact) and is_hex(recipe), "fingerprint")
    if key != recipe_key(artifact, recipe):
        raise ValueError("recipe_key: does not follow from the fingerprint")


class ClaimAnswer(Struct, frozen=True, kw_only=True):
    """The newest registration of a shard, and the registry's verdict on it.

    `recipe_key`, `fingerprint` and the range are null when the identity had a fault. `reasons` are
    those of eligibility; presence is among them (`not-live`) where the tracker listens for it, which
    `presence` tells.
    """

    boot_id: Uuid
    device: Text
    endpoint: Endpoint
    eligible_to_certify: bool
    eligible_to_serve: bool
    end: Layer | None
    fingerprint: Fingerprint | None
    host: Host
    node: PublicKey
    presence: bool
    reasons: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_REASONS)]
    recipe_key: Digest | None
    recipe_status: ShortText
    refusal: ShortText | None
    refusal_detail: LongText
    registered_sequence: Count
    shard_id: ShardId
    start: Layer | None
    status: ShortText

    def __post_init__(self) -> None:
        _check_form(is_uuid(self.boot_id), "boot_id")
        _check_form(is_endpoint(self.endpoint), "endpoint")
        _check_form(is_hex(self.host.id), "host")
        _check_form(is_key(self.node), "node")
        _check_form(is_shard_id(self.shard_id), "shard_id")
        _check_fingerprint(self.fingerprint, self.recipe_key)


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """Who a key is in the realm. `status` is `unknown` for one that nobody has heard of.

    `may_speak` is whether a node's facts from it are heard at all under the policy in force. The head
    is that of its chain: what its next event must follow, and the sequence of the record that holds it
    (0, 64 zeros and 0 before the first). `shards` are the ids of its live claims in order, the first
    `MAX_SHARDS` of them.
    """

    boot_id: Uuid | None
    group: Text
    head_digest: Digest
    head_issuerseq: Count
    label: Text
    may_speak: bool
    node: PublicKey
    status: ShortText
    shards: Annotated[tuple[ShardId, ...], Meta(max_length=MAX_SHARDS)] = ()
    head_sequence: Count = 0

    def __post_init__(self) -> None:
        _check_form(all(map(is_shard_id, self.shards)), "shards")
        _check_form(self.boot_id is None or is_uuid(self.boot_id), "boot_id")
        _check_form(is_hex(self.head_digest), "head_digest")
        _check_form(is_key(self.node), "node")


class HeadAnswer(Struct, frozen=True, kw_only=True):
    """The message that the next event of `node` must follow: its body, byte for byte.

    It is the newest event of the node itself or, where an operator let its chain start anew, the
    `node.enrolled` which says so: check its signature before you follow it. Before the first there is
    none, so it is `not-found`.
    """

    body: JsonObject
    head_sequence: Count
    node: PublicKey

    def __post_init__(self) -> None:
        _check_form(is_object(self.body), "body")
        _check_form(is_key(self.node), "node")


class PlannedHop(Struct, frozen=True, kw_only=True):
    """One hop of a route: a claim, and the layers `[start, end)` of it that are to be computed."""

    boot_id: Uuid
    end: Layer
    endpoint: Endpoint
    label: Text
    node: PublicKey
    shard_id: ShardId
    start: Layer

    def __post_init__(self) -> None:
        _check_form(is_uuid(self.boot_id), "boot_id")
        _check_form(is_endpoint(self.endpoint), "endpoint")
        _check_form(is_key(self.node), "node")
        _check_form(is_shard_id(self.shard_id), "shard_id")


class Obstacle(Struct, frozen=True):
    """What is in the way of a route: a code, and a text for people."""

    code: ShortText
    detail: LongText


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """A route (`hops`), or why there is none (`obstacles`). One of the two is empty.

    The hops of a route have all layers from 0 to `layer_count`, each from where the one before ends.
    """

    fingerprint: Fingerprint
    hops: tuple[PlannedHop, ...]
    layer_count: Layer
    obstacles: Annotated[tuple[Obstacle, ...], Meta(max_length=MAX_OBSTACLES)]
    purpose: Purpose
    recipe_key: Digest

    def __post_init__(self) -> None:
        if bool(self.hops) == bool(self.obstacles):
            raise ValueError("hops, obstacles: expected one of them empty, and the other not")
        _check_fingerprint(self.fingerprint, self.recipe_key)
        if self.hops and not self._is_whole():
            raise ValueError("hops: not all layers of the model, one hop after the other")

    def _is_whole(self) -> bool:
        hops = self.hops
        return (
            hops[0].start == 0
            and hops[-1].end == self.layer_count
            and all(hop.start < hop.end for hop in hops)
            and all(one.end == other.start for one, other in pairwise(hops))
        )


class RecipeAnswer(Struct, frozen=True, kw_only=True):
    """A recipe and the sentence that explains its status."""

    certified_time_ms: Integer | None
    fingerprint: Fingerprint
    layer_count: Layer
    proven_seams: tuple[Layer, ...]
    recipe_key: Digest
    status: ShortText
    why: LongText

    def __post_init__(self) -> None:
        _check_fingerprint(self.fingerprint, self.recipe_key)


class ClockAnswer(Struct, frozen=True, omit_defaults=True):
    """The broker's time, in ns since the epoch, at the moment it was asked.

    With it come the two bounds by which the policy in force judges the time of a proof. They are left
    out while the tracker has not caught up.
    """

    time_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    max_clock_skew_ms: Count | None = None
    max_report_age_ms: Count | None = None


Answer = ClaimAnswer | NodeAnswer | HeadAnswer | PlanAnswer | RecipeAnswer | ClockAnswer
AnswerType = TypeVar("AnswerType", bound=Answer)
