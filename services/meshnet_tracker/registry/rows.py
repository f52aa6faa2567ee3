"""What the registry knows, as rows.

The state is exactly these rows: a tracker writes them to SQLite as they are, and reading them back
gives the same state. Members are in alphabetical order, so that a row has one JSON spelling.
Rows are mutable: the fold owns them, everyone else only reads. They hold no cycles, so the garbage
collector need not look at them (`gc=False`): there are tens of thousands.

Ended and refused claims stay listed (the newest registration of each node and shard id). Rows that
can no longer change a verdict are dropped: handshake results, attestations and evidence live only
as long as the boots that they name are current.
"""

from typing import Literal

from msgspec import Raw, Struct

from meshnet_events.envelope import ChainHead
from meshnet_events.facts import Host, Mismatch, Policy, PresentedFingerprint
from meshnet_events.reasons import CONFLICT, NOT_ENROLLED, SUSPENDED

ClaimStatus = Literal["live", "refused", "withdrawn", "superseded", "suspended"]
RecipeStatus = Literal["unknown", "dark", "certified", "revoked"]
NodeStatus = Literal["enrolled", "not-enrolled", "suspended", "conflict"]


class Epoch(Struct, frozen=True, gc=False):
    """A stream that was lost, and where its successor goes on."""

    last_sequence: int
    log_root: str
    stream_created: str


class Realm(Struct, gc=False):
    """The realm: its root of trust, who may state operator facts now, and the policy in force."""

    created_time_ms: int
    epochs: tuple[Epoch, ...]
    operators: tuple[str, ...]
    policy: Policy
    policy_sequence: int
    realm: str
    root: str


class Chain(ChainHead, frozen=True, gc=False):
    """How far an issuer's chain got, and the sequence of the record that brought it there.

    That record is the issuer's own last event or, where an operator let the chain start anew, the
    `node.enrolled` which said so. 0 before the first.
    """

    issuer: str = ""
    sequence: int = 0


class Node(Struct, gc=False):
    """One key that speaks for a machine. `boot_id` is its current boot, if one has registered.

    `status_sequence` is that of the record which gave it its status; 0 while no record has.
    """

    node: str
    boot_id: str | None = None
    chain_from: int | None = None
    conflict: bool = False
    enrolled: bool = False
    equivocated: bool = False
    group: str = ""
    label: str = ""
    status_sequence: int = 0
    suspended: bool = False

    @property
    def status(self) -> NodeStatus:
        """One word; the worst that holds."""
        if self.suspended:
            return "suspended"
        if self.conflict:
            return "conflict"
        return "enrolled" if self.enrolled else "not-enrolled"

    def bars(self, policy: Policy) -> tuple[str, ...]:
        """Codes of all that bars its claims: the one place that says what a node must be."""
        if self.enrolled and not self.suspended and not self.conflict:
            return ()
        found = []
        if self.conflict:
            found.append(CONFLICT)
        if self.suspended:
            found.append(SUSPENDED)
        if not self.enrolled and policy.enrolment == "required":
            found.append(NOT_ENROLLED)
        return tuple(found)


class Identity(Struct, frozen=True, gc=False):
    """What the tracker derived from an identity block."""

    artifact_id: str
    backend_id: str
    catalogue_version: str
    layer_count: int
    model_artifact_digest: str
    recipe_id: str
    recipe_key: str
    recipe_version: str
    runtime_recipe_digest: str
    shard_end: int
    shard_start: int


class Claim(Struct, gc=False):
    """A node's newest registration of one shard id. `identity` is None when it had a fault."""

    boot_id: str
    device: str
    endpoint: str
    host: Host
    identity: Identity | None
    node: str
    sequence: int
    shard_id: str
    status: ClaimStatus
    synthetic: bool
    time_ms: int
    validated_at_ms: int
    ended_sequence: int | None = None
    ended_time_ms: int | None = None
    refusal: str | None = None
    refusal_detail: str = ""

    @property
    def recipe_key(self) -> str | None:
        """The recipe it offers, if its identity is sound."""
        return self.identity.recipe_key if self.identity else None


class Certification(Struct, frozen=True, gc=False):
    """The forward that took a recipe out of the dark."""

    evidence_digest: str
    nodes: tuple[str, ...]
    route_epoch: int
    route_session_id: str
    sequence: int
    time_ms: int


class Recipe(Struct, gc=False):
    """A fingerprint that an admitted claim made known. `identity` is that claim's block.

    `sequence` and `time_ms` are those of the record that made it known, `status_sequence` is that
    of the one which gave it its status.
    """

    certification: Certification | None
    identity: Raw
    layer_count: int
    model_artifact_digest: str
    proven_seams: tuple[int, ...]
    recipe_key: str
    runtime_recipe_digest: str
    sequence: int
    status: RecipeStatus
    status_sequence: int
    time_ms: int
    revoked_reason: str | None = None

    @property
    def said_why(self) -> str:
        """What the operator said when revoking it."""
        return self.revoked_reason or "no reason was given"


class Handshake(Struct, frozen=True, gc=False):
    """The newest result that `node` reported about `peer`, both in their current boots."""

    accepted: bool
    boot_id: str
    mismatches: tuple[Mismatch, ...]
    node: str
    peer: str
    peer_boot_id: str
    presented: PresentedFingerprint | None
    recipe_key: str
    role: str
    route_epoch: int
    route_session_id: str
    sequence: int
    time_ms: int


class Participant(Struct, frozen=True, gc=False):
    """A hop of some evidence, by the claim it names."""

    boot_id: str
    node: str
    shard_id: str


class Evidence(Struct, gc=False):
    """Evidence that is not certified: waiting for attestations, or void for good."""

    attested: tuple[str, ...]
    evidence_digest: str
    participants: tuple[Participant, ...]
    recipe_key: str
    route_epoch: int
    route_session_id: str
    seams: tuple[int, ...]
    sequence: int
    time_ms: int
    void: str | None = None


class Transition(Struct, frozen=True, gc=False):
    """A change of a recipe's, node's or shard's status, with the record that caused it."""

    cause: str
    detail: str
    kind: Literal["recipe", "node", "shard"]
    new: str
    old: str
    sequence: int
    subject: str
    time_ms: int


class RefusedRecord(Struct, frozen=True, gc=False):
    """A record that was rejected: which, and why."""

    code: str
    detail: str
    issuer: str
    sequence: int
    time_ms: int
    type: str
