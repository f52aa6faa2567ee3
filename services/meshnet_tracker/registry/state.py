"""The rows, the indexes over them, and what changed since someone last asked.

`State` holds rows and derives indexes from them; it decides nothing. Rows come and go through its
verbs only, and whatever an index or a transition follows is changed by them alone: by which key a
row goes, a claim's status and recipe, a boot, whether evidence is void. The other members of a row
are changed by whoever has *touched* it, which puts it on the list of changes. So rows, indexes and
that list cannot come apart. The realm has one row, which needs no touching: it goes with every
commit. `snapshot.restore` rebuilds the same state from what `take_changes` gave away.

Handshake results, attestations and evidence name boots. Once a boot is superseded no record that
names it can be applied again, so `supersede_boot` drops them: the state is bounded by what is
running, not by how long the log is. Only the superseded boots themselves are kept for good, since
one must never return.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from sys import intern
from typing import Literal, TypeVar

from msgspec import Struct, field

from meshnet_events.facts import DEFAULT_POLICY, Policy
from meshnet_tracker.registry.identity import IdentityReader
from meshnet_tracker.registry.rows import (
    Chain,
    Claim,
    ClaimStatus,
    Evidence,
    Handshake,
    Node,
    Realm,
    Recipe,
    RecipeStatus,
    RefusedRecord,
    Transition,
)

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")

NO_EVENT = Chain()
VOID_CLAIM_ENDED = "a claim that it names ended"


class Cause(Struct, frozen=True, gc=False):
    """The record at hand, as far as the rules may know it."""

    sequence: int
    time_ms: int
    issuer: str
    digest: str
    type: str
    identity: bytes = b""


class Changes(Struct):
    """Keys of the rows that changed, and what was appended, since the last `take_changes`.

    Where rows come and go, each key says whether there was a row when changes were last taken: one
    that came since and went again is no change.

    `handshakes_said` counts the handshakes that were applied, by the reason of a refusal (one of
    `rules.handshakes.REASONS`) and under "" where it was accepted: rows are only the newest of them.
    """

    chains: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    boots: list[tuple[str, str]] = field(default_factory=list)
    claims: set[tuple[str, str]] = field(default_factory=set)
    recipes: set[str] = field(default_factory=set)
    handshakes: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    attestations: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    evidence: dict[str, bool] = field(default_factory=dict)
    transitions: list[Transition] = field(default_factory=list)
    refusals: list[RefusedRecord] = field(default_factory=list)
    handshakes_said: dict[str, int] = field(default_factory=dict)


class State:
    """Everything the registry of one realm knows after a prefix of its log."""

    def __init__(self, name: str) -> None:
        """Build the state before sequence 1 of the realm called `name`."""
        self.name = name
        self.sequence = 0
        self.time_ns = 0
        self.realm: Realm | None = None
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.chains: dict[str, Chain] = {}
        self.nodes: dict[str, Node] = {}
        self.boots: dict[str, set[str]] = {}
        self.claims: dict[str, dict[str, Claim]] = {}
        self.recipes: dict[str, Recipe] = {}
        self.handshakes: dict[tuple[str, str, str], Handshake] = {}
        self.attestations: dict[str, dict[tuple[str, int], str]] = {}
        self.evidence: dict[str, Evidence] = {}
        self.changes = Changes()
        self.identities = IdentityReader()
        self.policy: Policy = DEFAULT_POLICY
        # indexes, derived from the rows above
        self.live_claims: dict[str, dict[tuple[str, str], Claim]] = {}
        self.refused_pairs: dict[str, set[tuple[str, str]]] = {}
        self._handshakes_of: dict[str, set[tuple[str, str, str]]] = {}
        self._live_of: dict[str, dict[str, Claim]] = {}
        self._evidence_of: dict[str, set[str]] = {}
        self._pending_of: dict[tuple[str, str], set[str]] = {}

    def take_changes(self) -> Changes:
        """What changed since this was last called."""
        changes, self.changes = self.changes, Changes()
        return changes

    def count(self, sequence: int, time_ns: int, outcome: str) -> None:
        """The record at `sequence` is accounted for: applied + noop + rejected = records seen."""
        self.sequence = sequence
        self.time_ns = time_ns
        self.counts[outcome] += 1

    # -- looking ---------------------------------------------------------------------------------

    def expect_realm(self) -> Realm:
        """The realm's row, which exists from sequence 1 on."""
        if self.realm is None:
            raise LookupError(f"no record of the realm {self.name!r} has been folded yet")
        return self.realm

    def chain_of(self, issuer: str) -> Chain:
        """How far the chain of `issuer` got."""
        return self.chains.get(issuer, NO_EVENT)

    def is_known(self, node: str) -> bool:
        """A node is known when it is enrolled or issued a record that continued its chain."""
        return node in self.chains or ((row := self.nodes.get(node)) is not None and row.enrolled)

    def is_superseded(self, node: str, boot_id: str) -> bool:
        """Whether this boot was current once and is no longer."""
        boots = self.boots.get(node)
        return boots is not None and boot_id in boots

    def claim(self, node: str, shard_id: str) -> Claim | None:
        """The newest registration of a node's shard id."""
        claims = self.claims.get(node)
        return None if claims is None else claims.get(shard_id)

    def attested(self, node: str, session: str, epoch: int) -> str | None:
        """The digest of what `node` attested for a session and epoch in its current boot."""
        words = self.attestations.get(node)
        return None if words is None else words.get((session, epoch))

    def any_live_claim(self, node: str) -> Claim | None:
        """Some live claim of `node`: all are on one host while it is in no conflict."""
        held = self._live_of.get(node)
        return next(iter(held.values())) if held else None

    def all_claims(self) -> Iterator[Claim]:
        """Every claim, ended and refused ones included."""
        for claims in self.claims.values():
            yield from claims.values()

    # -- realm -----------------------------------------------------------------------------------

    def put_policy(self, realm: Realm, policy: Policy) -> None:
        """`policy` is in force from the next record on."""
        realm.policy = self.policy = policy

    # -- chains, nodes and boots -----------------------------------------------------------------

    def advance_chain(self, chain: Chain) -> None:
        """An issuer's chain got as far as this."""
        self.chains[chain.issuer] = chain
        self.changes.chains.add(chain.issuer)

    def touch_node(self, node: str) -> Node:
        """The node's row, to be changed; made if there is none."""
        row = self.nodes.get(node)
        if row is None:
            node = intern(node)
            row = self.nodes[node] = Node(node)
        self.changes.nodes.add(node)
        return row

    def note_node_status(self, row: Node, before: str, cause: Cause, detail: str = "") -> None:
        """A touched node that was `before` may have another status now."""
        if row.status != before:
            row.status_sequence = cause.sequence
            self.append_transition("node", row.node, before, row.status, cause, detail)

    def supersede_boot(self, row: Node, *, successor: str | None) -> None:
        """The node's current boot, if any, is history. All its claims must have ended before."""
        node, old = row.node, row.boot_id
        row.boot_id = successor
        self.changes.nodes.add(node)
        if old is None:
            return
        self.boots.setdefault(node, set()).add(old)
        self.changes.boots.append((node, old))
        for key in self._handshakes_of.pop(node, ()):
            self._drop_handshake(key)
        for session, epoch in self.attestations.pop(node, ()):
            _went(self.changes.attestations, (node, session, epoch))
        for digest in self._evidence_of.pop(node, ()):
            self.drop_evidence(digest)

    # -- claims and recipes ----------------------------------------------------------------------

    def put_claim(self, claim: Claim) -> None:
        """List `claim` as the newest of its node and shard id. An older one must have ended."""
        claims = self.claims.get(claim.node)
        if claims is None:
            claims = self.claims[claim.node] = {}
        claims[claim.shard_id] = claim
        key = (claim.node, claim.shard_id)
        self.changes.claims.add(key)
        if claim.status == "live" and claim.identity is not None:
            recipe_key = claim.identity.recipe_key
            live = self.live_claims.get(recipe_key)
            if live is None:
                live = self.live_claims[recipe_key] = {}
            live[key] = claim
            held = self._live_of.get(claim.node)
            if held is None:
                held = self._live_of[claim.node] = {}
            held[claim.shard_id] = claim

    def touch_claim(self, claim: Claim) -> None:
        """A live claim is about to be changed; neither its recipe nor its range will."""
        self.changes.claims.add((claim.node, claim.shard_id))

    def end_claim(self, claim: Claim, status: ClaimStatus, cause: Cause) -> None:
        """A live claim ends; pending evidence that names it is void."""
        key = (claim.node, claim.shard_id)
        if claim.identity is not None:
            del self.live_claims[claim.identity.recipe_key][key]
            del self._live_of[claim.node][claim.shard_id]
        for digest in self._pending_of.pop(key, ()):
            self.void_evidence(self.evidence[digest], VOID_CLAIM_ENDED)
        self.set_claim_status(claim, status, cause)
        claim.ended_sequence = cause.sequence
        claim.ended_time_ms = cause.time_ms

    def set_claim_status(self, claim: Claim, status: ClaimStatus, cause: Cause) -> None:
        """Change the word for a claim that is not (or no longer) live."""
        self.append_transition(
            "shard", f"{claim.node}/{claim.shard_id}", claim.status, status, cause
        )
        claim.status = status
        self.changes.claims.add((claim.node, claim.shard_id))

    def end_claims(self, node: str, status: ClaimStatus, cause: Cause) -> None:
        """End every live claim of `node`, by shard id: rows that were read back have no order."""
        if held := self._live_of.get(node):
            for shard_id in sorted(held):
                self.end_claim(held[shard_id], status, cause)

    def put_recipe(self, recipe: Recipe, cause: Cause) -> None:
        """A recipe becomes known."""
        self.recipes[recipe.recipe_key] = recipe
        self.changes.recipes.add(recipe.recipe_key)
        self.append_transition("recipe", recipe.recipe_key, "unknown", recipe.status, cause)

    def touch_recipe(self, recipe: Recipe) -> None:
        """A recipe is about to be changed."""
        self.changes.recipes.add(recipe.recipe_key)

    def set_recipe_status(
        self, recipe: Recipe, status: RecipeStatus, cause: Cause, detail: str = ""
    ) -> None:
        """Change a recipe's status."""
        self.append_transition("recipe", recipe.recipe_key, recipe.status, status, cause, detail)
        recipe.status = status
        recipe.status_sequence = cause.sequence
        self.touch_recipe(recipe)

    def prove_seams(self, recipe: Recipe, seams: Iterable[int]) -> None:
        """Add seams that a certified forward crossed."""
        new = [seam for seam in seams if seam not in recipe.proven_seams]
        if new:
            self.touch_recipe(recipe)
            recipe.proven_seams = tuple(sorted({*recipe.proven_seams, *new}))

    def clear_proof(self, recipe: Recipe) -> None:
        """Nothing is proven of `recipe` any more; what was pending for it is void."""
        recipe.certification = None
        recipe.proven_seams = ()
        self.touch_recipe(recipe)
        pending = {digest for digests in self._pending_of.values() for digest in digests}
        for digest in pending:
            evidence = self.evidence[digest]
            if evidence.recipe_key == recipe.recipe_key:
                self.void_evidence(evidence, "the recipe was revoked")

    # -- handshakes ------------------------------------------------------------------------------

    def put_handshake(self, handshake: Handshake) -> None:
        """Keep the newest result of this side for this peer, both boots and fingerprint."""
        key = (handshake.node, handshake.peer, handshake.recipe_key)
        known = key in self.handshakes
        if not known:
            _enter(self._handshakes_of, handshake.node, key)
            _enter(self._handshakes_of, handshake.peer, key)
        self.handshakes[key] = handshake
        self.changes.handshakes.setdefault(key, known)
        if not handshake.accepted:
            _enter(self.refused_pairs, handshake.recipe_key, key[:2])
        elif handshake.recipe_key in self.refused_pairs:
            _discard(self.refused_pairs, handshake.recipe_key, key[:2])

    def _drop_handshake(self, key: tuple[str, str, str]) -> None:
        if self.handshakes.pop(key, None) is None:
            return
        _went(self.changes.handshakes, key)
        for node in key[:2]:
            _discard(self._handshakes_of, node, key)
        _discard(self.refused_pairs, key[2], key[:2])

    # -- evidence --------------------------------------------------------------------------------

    def put_attestation(self, node: str, session: str, epoch: int, digest: str) -> None:
        """Remember what `node` attested for a session and epoch in its current boot, once."""
        self.attestations.setdefault(node, {})[session, epoch] = digest
        self.changes.attestations.setdefault((node, session, epoch), False)

    def put_evidence(self, evidence: Evidence) -> None:
        """Keep evidence that is pending or void."""
        digest = evidence.evidence_digest
        self.evidence[digest] = evidence
        self.changes.evidence.setdefault(digest, False)
        for hop in evidence.participants:
            _enter(self._evidence_of, hop.node, digest)
            if evidence.void is None:
                _enter(self._pending_of, (hop.node, hop.shard_id), digest)

    def touch_evidence(self, evidence: Evidence) -> None:
        """Evidence is about to be changed: another participant attested it."""
        self.changes.evidence.setdefault(evidence.evidence_digest, True)

    def void_evidence(self, evidence: Evidence, why: str) -> None:
        """The evidence will certify nothing, whoever attests it."""
        self.touch_evidence(evidence)
        evidence.void = why
        self._forget_pending(evidence)

    def drop_evidence(self, digest: str) -> None:
        """Forget evidence that was certified, or that names a boot which is history."""
        evidence = self.evidence.pop(digest, None)
        if evidence is None:
            return
        _went(self.changes.evidence, digest)
        self._forget_pending(evidence)
        for hop in evidence.participants:
            _discard(self._evidence_of, hop.node, digest)

    def _forget_pending(self, evidence: Evidence) -> None:
        for hop in evidence.participants:
            _discard(self._pending_of, (hop.node, hop.shard_id), evidence.evidence_digest)

    # -- what is appended ------------------------------------------------------------------------

    def append_transition(
        self,
        kind: Literal["recipe", "node", "shard"],
        subject: str,
        old: str,
        new: str,
        cause: Cause,
        detail: str = "",
    ) -> None:
        """The status of a recipe, node or shard changed from `old` to `new`."""
        self.changes.transitions.append(
            Transition(
                cause=cause.type,
                detail=detail,
                kind=kind,
                new=new,
                old=old,
                sequence=cause.sequence,
                subject=subject,
                time_ms=cause.time_ms,
            )
        )


def _went(changed: dict[_Key, bool], key: _Key) -> None:
    """The row of `key` is gone."""
    if changed.get(key) is False:
        del changed[key]
    else:
        changed[key] = True


def _enter(index: dict[_Key, set[_Entry]], key: _Key, entry: _Entry) -> None:
    """Put `entry` into an index."""
    if entries := index.get(key):
        entries.add(entry)
    else:
        index[key] = {entry}


def _discard(index: dict[_Key, set[_Entry]], key: _Key, entry: _Entry) -> None:
    """Take `entry` out of an index, and the key with its last one: names that were are no memory."""
    if entries := index.get(key):
        entries.discard(entry)
        if not entries:
            del index[key]
