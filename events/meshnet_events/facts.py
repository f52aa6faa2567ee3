"""What can happen in a realm, as frozen structs: the `data` of every event type.

Rules that hold for all of them:

- Members are declared in alphabetical order, so encoding in that order *is* canonical form.
- Unknown members are refused; nothing has a default; there are no floats.
- What a member must look like is in `forms`. Times are integer milliseconds and end in `_ms`.
- A fact checks this for its parts too: a call for each part is what decoding would mostly spend.

`FACTS` names every type this release writes and reads; `meshnet_events.upcast` brings older ones
forward. A later version of a fact is a new struct, a new name and a new golden file.
"""

import hashlib
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from meshnet_events.forms import (
    DIGEST_SHAPE,
    MAX_INTEGER,
    UUID_SHAPE,
    Count,
    Digest,
    Endpoint,
    Integer,
    JsonObject,
    PublicKey,
    SessionId,
    ShardId,
    ShortText,
    Text,
    Uuid,
    explain,
    is_endpoint,
    is_hex,
    is_key,
    is_object,
    is_shard_id,
    is_uuid,
    shape,
)

TYPE_PREFIX = "io.meshnet."


_OFFER_SHAPE = UUID_SHAPE + 4 * DIGEST_SHAPE
_HANDSHAKE_SHAPE = 2 * UUID_SHAPE + 2 * DIGEST_SHAPE


class Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A struct within a fact, which checks it."""


class Fact(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Something that happened. `NAME` is its type without prefix and version."""

    NAME: ClassVar[str]


class Fingerprint(Part, frozen=True, kw_only=True):
    """Which artifact and which recipe (two digests), and the labels that ride along."""

    catalogue_version: Text
    model_artifact_digest: Digest
    recipe_id: Text
    recipe_version: Text
    runtime_recipe_digest: Digest


class PresentedFingerprint(Part, frozen=True, kw_only=True):
    """What a peer presented: five texts that may be garbage, each cut to 128 characters."""

    catalogue_version: ShortText
    model_artifact_digest: ShortText
    recipe_id: ShortText
    recipe_version: ShortText
    runtime_recipe_digest: ShortText


class Mismatch(Part, frozen=True, kw_only=True):
    """One reason why two shards may not compute together."""

    detail: Text
    reason: Text
    shard_index: Integer | None


class Host(Part, frozen=True, kw_only=True):
    """The physical machine under a node: a keyed machine id, or one that the owner declared."""

    id: Digest
    source: Literal["machine-id", "declared"]


class Capability(Part, frozen=True, kw_only=True):
    """What the doctor proved: the labels and digests of what ran, and what it measured."""

    backend_id: Text
    device: Text
    diagnostics: tuple[Text, ...]
    duration_ms: Count
    model_artifact_digest: Digest
    model_id: Text
    output_digest: Digest
    recipe_id: Text
    recipe_version: Text
    runtime_recipe_digest: Digest
    shard_end: Integer
    shard_start: Integer
    status: Literal["passed", "failed", "error"]
    synthetic: bool
    tokens: Count
    validated_at_ms: Integer


class Hop(Part, frozen=True, kw_only=True):
    """One participant of a forward and the layers it computed, `[start, end)`."""

    boot_id: Uuid
    end: Integer
    node: PublicKey
    shard_id: ShardId
    start: Integer


class Evidence(Part, frozen=True, kw_only=True):
    """What a distributed forward did; every participant attests the same bytes."""

    completed_at_ms: Integer
    hops: tuple[Hop, ...]
    input_digest: Digest
    layer_count: Integer
    model_artifact_digest: Digest
    output_digest: Digest
    route_epoch: Count
    route_session_id: SessionId
    runtime_recipe_digest: Digest
    seams: tuple[Digest, ...]
    synthetic: bool
    tokens_generated: Count


class Policy(Part, frozen=True, kw_only=True):
    """What an operator asks of proofs, evidence and routes. Every member is always stated."""

    accept_declared_hosts: bool
    certify: Literal["recipe", "seams"]
    enrolment: Literal["required", "open"]
    max_clock_skew_ms: Integer
    max_report_age_ms: Integer
    min_certifying_nodes: Integer
    min_distinct_groups: Integer
    min_distinct_hosts: Integer

    def counts(self, host: Host) -> bool:
        """Whether `host` is one of the distinct hosts that are asked for."""
        return host.source == "machine-id" or self.accept_declared_hosts

    def fault(self) -> str | None:
        """Say what the policy asks too little of, or None when it may be put in force."""
        for member, least in (
            ("max_clock_skew_ms", 0),
            ("max_report_age_ms", 0),
            ("min_certifying_nodes", 2),
            ("min_distinct_groups", 1),
            ("min_distinct_hosts", 1),
        ):
            if getattr(self, member) < least:
                return f"{member} is {getattr(self, member)}; the least is {least}"
        return None


DEFAULT_POLICY = Policy(
    accept_declared_hosts=False,
    certify="recipe",
    enrolment="required",
    max_clock_skew_ms=60_000,
    max_report_age_ms=900_000,
    min_certifying_nodes=2,
    min_distinct_groups=1,
    min_distinct_hosts=2,
)


class RealmCreated(Fact, frozen=True, kw_only=True):
    """Sequence 1 and only there: the root of trust and the first policy."""

    NAME = "realm.created"
    operators: tuple[Text, ...]
    policy: Policy
    realm: Text


class RealmContinued(Fact, frozen=True, kw_only=True):
    """The stream was lost and created anew; an auditor kept what came before."""

    NAME = "realm.continued"
    last_sequence: Count
    log_root: Digest
    realm: Text
    stream_created: Text

    def __post_init__(self) -> None:
        if not is_hex(self.log_root):
            explain(self)


class OperatorsChanged(Fact, frozen=True, kw_only=True):
    """Who may state operator facts from now on."""

    NAME = "operators.changed"
    operators: tuple[Text, ...]
    reason: Text


class PolicyChanged(Fact, frozen=True, kw_only=True):
    """The policy for later records. Configuration that changes a verdict is itself an event."""

    NAME = "policy.changed"
    policy: Policy
    reason: Text


class NodeEnrolled(Fact, frozen=True, kw_only=True):
    """A node may speak. `group` is the person or organisation behind it; empty means none."""

    NAME = "node.enrolled"
    chain_from: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None
    group: Text
    label: Text
    node: PublicKey

    def __post_init__(self) -> None:
        if not is_key(self.node):
            explain(self)


class NodeSuspended(Fact, frozen=True, kw_only=True):
    """A node may not speak, and all its claims end."""

    NAME = "node.suspended"
    node: PublicKey
    reason: Text

    def __post_init__(self) -> None:
        if not is_key(self.node):
            explain(self)


class NodeReinstated(Fact, frozen=True, kw_only=True):
    """Suspension or conflict is lifted; every process of the node must restart."""

    NAME = "node.reinstated"
    node: PublicKey
    reason: Text

    def __post_init__(self) -> None:
        if not is_key(self.node):
            explain(self)


class ShardRegistered(Fact, frozen=True, kw_only=True):
    """A node offers layers of an artifact under a recipe, with a proof that it can compute them.

    `identity` need only be a JSON object here: faults inside it are the fold's `bad-identity`.
    """

    NAME = "shard.registered"
    boot_id: Uuid
    capability: Capability
    device: Text
    endpoint: Endpoint
    host: Host
    identity: JsonObject
    shard_id: ShardId

    def __post_init__(self) -> None:
        proven = self.capability
        if not (
            shape(
                f"{self.boot_id}{proven.model_artifact_digest}{proven.output_digest}"
                f"{proven.runtime_recipe_digest}{self.host.id}"
            )
            == _OFFER_SHAPE
            and is_endpoint(self.endpoint)
            and is_shard_id(self.shard_id)
            and is_object(self.identity)
        ):
            explain(self)


class ShardWithdrawn(Fact, frozen=True, kw_only=True):
    """A node takes a shard back."""

    NAME = "shard.withdrawn"
    boot_id: Uuid
    reason: Text
    shard_id: ShardId

    def __post_init__(self) -> None:
        if not (is_uuid(self.boot_id) and is_shard_id(self.shard_id)):
            explain(self)


class HandshakeCompleted(Fact, frozen=True, kw_only=True):
    """One side's result of comparing fingerprints with a neighbour."""

    NAME = "handshake.completed"
    accepted: bool
    boot_id: Uuid
    local: Fingerprint
    mismatches: tuple[Mismatch, ...]
    peer: PublicKey
    peer_boot_id: Uuid
    presented: PresentedFingerprint
    role: Literal["initiator", "responder"]
    route_epoch: Count
    route_session_id: SessionId

    def __post_init__(self) -> None:
        local = self.local
        if not (
            shape(
                f"{self.boot_id}{self.peer_boot_id}"
                f"{local.model_artifact_digest}{local.runtime_recipe_digest}"
            )
            == _HANDSHAKE_SHAPE
            and is_key(self.peer)
        ):
            explain(self)


class ForwardAttested(Fact, frozen=True, kw_only=True):
    """A participant's word that the evidence is what it saw itself, at hop number `hop`."""

    NAME = "forward.attested"
    evidence: Evidence
    hop: Integer
    in_digest: Digest
    out_digest: Digest

    def __post_init__(self) -> None:
        evidence, hops = self.evidence, self.evidence.hops
        texts = [hop.boot_id for hop in hops]
        texts += evidence.seams
        texts += (
            self.in_digest,
            self.out_digest,
            evidence.input_digest,
            evidence.model_artifact_digest,
            evidence.output_digest,
            evidence.runtime_recipe_digest,
        )
        digests = len(texts) - len(hops)
        if shape("".join(texts)) != UUID_SHAPE * len(hops) + DIGEST_SHAPE * digests:
            explain(self)
        for hop in hops:
            if not (is_key(hop.node) and is_shard_id(hop.shard_id)):
                explain(self)


class RecipeRevoked(Fact, frozen=True, kw_only=True):
    """An operator takes a recipe out of service; its proven seams are void."""

    NAME = "recipe.revoked"
    reason: Text
    recipe_key: Digest

    def __post_init__(self) -> None:
        if not is_hex(self.recipe_key):
            explain(self)


class RecipeReinstated(Fact, frozen=True, kw_only=True):
    """A revoked recipe is dark again and must be certified anew."""

    NAME = "recipe.reinstated"
    reason: Text
    recipe_key: Digest

    def __post_init__(self) -> None:
        if not is_hex(self.recipe_key):
            explain(self)


OPERATOR_FACTS: tuple[type[Fact], ...] = (
    RealmCreated,
    RealmContinued,
    OperatorsChanged,
    PolicyChanged,
    NodeEnrolled,
    NodeSuspended,
    NodeReinstated,
    RecipeRevoked,
    RecipeReinstated,
)
NODE_FACTS: tuple[type[Fact], ...] = (
    ShardRegistered,
    ShardWithdrawn,
    HandshakeCompleted,
    ForwardAttested,
)
FACTS: dict[str, type[Fact]] = {
    f"{TYPE_PREFIX}{fact.NAME}.v1": fact for fact in (*OPERATOR_FACTS, *NODE_FACTS)
}


@lru_cache(maxsize=65_536)
def recipe_key(model_artifact_digest: str, runtime_recipe_digest: str) -> str:
    """Short name of a fingerprint: SHA-256 of `artifact:recipe` in ASCII, 64 hex."""
    return hashlib.sha256(
        f"{model_artifact_digest}:{runtime_recipe_digest}".encode("ascii")
    ).hexdigest()
