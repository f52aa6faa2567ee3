"""`forward.attested`: evidence that a distributed forward worked, word by word.

| order | rejected | when |
|---|---|---|
| 1 | `evidence:synthetic` | the forward was synthetic |
| 2 | `evidence:too-few-nodes` | fewer than two distinct nodes |
| 3 | `evidence:duplicate-node` | a node is counted twice |
| 4 | `evidence:no-tokens` | nothing was generated |
| 5 | `evidence:coverage` | the hops do not tile `[0, layer_count)` exactly and in order |
| 6 | `unknown-recipe`, `revoked` | no admitted claim made the recipe known, or it is revoked |
| 7 | `evidence:layer-count` | the artifact has another number of layers |
| 8 | `evidence:stale` | `completed_at_ms` lies outside report age and skew of the record's time |
| 9 | `evidence:hop` | the issuer is not hop `hop`, or a hop is no live, genuine claim of an able node |
| 10 | `evidence:digests` | input, seams and output do not chain |
| 11 | `evidence:equivocation` | this node in this boot attested other evidence for this session and epoch; it is flagged, and what is not certified by either is void |
| | *noop* | attested before, or the evidence is void (its word still counts for 11) |
| 12 | `evidence:policy-nodes`, `-hosts`, `-groups` | the last participant's word, and the policy asks for more: void, never judged again (its word still counts for 11) |

Applied otherwise. The last participant's word certifies a dark recipe and proves every seam that
was crossed; on a certified recipe it only adds seams. Evidence that is fully attested is not kept:
the attestations themselves answer a repetition.
"""  # noqa: E501 - a table's rows are lines

import hashlib
from typing import Literal

import msgspec

from meshnet_events import facts, reasons
from meshnet_events.facts import ForwardAttested, recipe_key
from meshnet_events.reasons import Refusal
from meshnet_tracker.registry.outcome import APPLIED, NOOP, Outcome, refused, rejected
from meshnet_tracker.registry.rows import Certification, Evidence, Participant, Recipe
from meshnet_tracker.registry.state import Cause, State

MIN_CERTIFYING_NODES = 2

_POLICY_CODES = {
    "node": reasons.EVIDENCE_POLICY_NODES,
    "host": reasons.EVIDENCE_POLICY_HOSTS,
    "group": reasons.EVIDENCE_POLICY_GROUPS,
}
_encode = msgspec.json.Encoder().encode
_DIGEST_PREFIX = b'{"body":'
_DIGEST_SUFFIX = b',"domain":"meshnet.forward-evidence.v1"}'


def evidence_digest(evidence: facts.Evidence) -> str:
    """`canonical_sha256({"domain": "meshnet.forward-evidence.v1", "body": evidence})`."""
    body = _encode(evidence)  # in order of declaration, which is alphabetical
    return hashlib.sha256(_DIGEST_PREFIX + body + _DIGEST_SUFFIX).hexdigest()


def attested(state: State, fact: ForwardAttested, cause: Cause) -> Outcome:
    """A participant says that the evidence is what it saw."""
    evidence = fact.evidence
    key = recipe_key(evidence.model_artifact_digest, evidence.runtime_recipe_digest)
    digest = evidence_digest(evidence)
    pending = state.evidence.get(digest)
    # what is pending was sound when it was first attested, and is the same evidence
    if pending is None and (refusal := _unsound(evidence)):
        return refused(refusal)
    recipe = state.recipes.get(key)
    if recipe is None:
        return rejected(reasons.UNKNOWN_RECIPE, f"no admitted claim offered {key}")
    if recipe.status == "revoked":
        return rejected(reasons.REVOKED, f"{key} was revoked: {recipe.said_why}")
    if refusal := (
        _not_of_this_recipe(state, recipe, evidence, cause)
        or _broken_hop(state, key, fact, cause.issuer)
        or _broken_digests(fact)
    ):
        return refused(refusal)

    before = state.attested(cause.issuer, evidence.route_session_id, evidence.route_epoch)
    if before is not None and before != digest:
        return _equivocation(state, evidence, digest, before, key, cause)
    if before == digest:
        return NOOP
    state.put_attestation(cause.issuer, evidence.route_session_id, evidence.route_epoch, digest)
    if pending is not None and pending.void is not None:
        return NOOP
    if pending is None:
        state.put_evidence(pending := _pending(evidence, digest, key, cause))
    state.touch_evidence(pending)
    pending.attested = (*pending.attested, cause.issuer)
    if len(pending.attested) < len(evidence.hops):
        return APPLIED
    if refusal := _short_of_policy(state, evidence):
        state.void_evidence(pending, refusal.detail)
        return refused(refusal)
    _certify(state, recipe, pending, cause)
    return APPLIED


def _unsound(evidence: facts.Evidence) -> Refusal | None:
    """What makes evidence worthless whatever the registry knows (rows 1 to 5)."""
    distinct = len({hop.node for hop in evidence.hops})
    if evidence.synthetic:
        return Refusal(reasons.EVIDENCE_SYNTHETIC, "the forward was synthetic")
    if distinct < MIN_CERTIFYING_NODES:
        return Refusal(
            reasons.EVIDENCE_TOO_FEW_NODES,
            f"{distinct} distinct nodes; at least {MIN_CERTIFYING_NODES}",
        )
    if distinct < len(evidence.hops):
        return Refusal(reasons.EVIDENCE_DUPLICATE_NODE, "a node is counted twice")
    if evidence.tokens_generated < 1:
        return Refusal(reasons.EVIDENCE_NO_TOKENS, "no token was generated")
    reached = 0
    for index, hop in enumerate(evidence.hops):
        if hop.start != reached or hop.end <= hop.start:
            return Refusal(
                reasons.EVIDENCE_COVERAGE,
                f"hop {index} computes [{hop.start}, {hop.end}); expected to start at {reached}",
            )
        reached = hop.end
    if reached != evidence.layer_count:
        return Refusal(
            reasons.EVIDENCE_COVERAGE,
            f"the hops end at {reached}; expected {evidence.layer_count}",
        )
    return None


def _not_of_this_recipe(
    state: State, recipe: Recipe, evidence: facts.Evidence, cause: Cause
) -> Refusal | None:
    """Rows 7 and 8."""
    if evidence.layer_count != recipe.layer_count:
        return Refusal(
            reasons.EVIDENCE_LAYER_COUNT,
            f"layer_count is {evidence.layer_count}; the artifact has {recipe.layer_count}",
        )
    policy = state.policy
    age_ms = cause.time_ms - evidence.completed_at_ms
    if not -policy.max_clock_skew_ms <= age_ms <= policy.max_report_age_ms:
        return Refusal(
            reasons.EVIDENCE_STALE,
            f"completed {age_ms} ms before the record; allowed are "
            f"{-policy.max_clock_skew_ms} to {policy.max_report_age_ms}",
        )
    return None


def _broken_hop(state: State, key: str, fact: ForwardAttested, issuer: str) -> Refusal | None:
    """Row 9."""
    hops = fact.evidence.hops
    if not 0 <= fact.hop < len(hops) or hops[fact.hop].node != issuer:
        return Refusal(reasons.EVIDENCE_HOP, f"the issuer is not hop {fact.hop}")
    for index, hop in enumerate(hops):
        if fault := _fault_of_hop(state, key, hop):
            return Refusal(
                reasons.EVIDENCE_HOP, f"hop {index} ({hop.node}/{hop.shard_id}): {fault}"
            )
    return None


def _fault_of_hop(state: State, key: str, hop: facts.Hop) -> str | None:
    claim = state.claim(hop.node, hop.shard_id)
    if claim is None or claim.identity is None or claim.status != "live":
        return "no live claim"
    identity = claim.identity
    if claim.boot_id != hop.boot_id:
        return "the live claim is of another boot"
    if identity.recipe_key != key:
        return "the live claim offers another recipe"
    if not identity.shard_start <= hop.start < hop.end <= identity.shard_end:
        return f"the claim holds [{identity.shard_start}, {identity.shard_end})"
    if claim.synthetic:
        return "its backend is synthetic"
    if bars := state.nodes[hop.node].bars(state.policy):
        return f"its node is barred: {', '.join(bars)}"
    return None


def _broken_digests(fact: ForwardAttested) -> Refusal | None:
    """Row 10."""
    evidence, at = fact.evidence, fact.hop
    if len(evidence.seams) != len(evidence.hops) - 1:
        return Refusal(
            reasons.EVIDENCE_DIGESTS,
            f"{len(evidence.seams)} seams for {len(evidence.hops)} hops; expected one fewer",
        )
    chain = (evidence.input_digest, *evidence.seams, evidence.output_digest)
    if fact.in_digest != chain[at] or fact.out_digest != chain[at + 1]:
        return Refusal(
            reasons.EVIDENCE_DIGESTS, f"hop {at} saw other digests than the evidence states"
        )
    return None


def _equivocation(
    state: State, evidence: facts.Evidence, digest: str, before: str, key: str, cause: Cause
) -> Outcome:
    """Two words for one session: the node is flagged, and neither counts unless it did already."""
    state.touch_node(cause.issuer).equivocated = True
    why = f"{cause.issuer} equivocated in session {evidence.route_session_id[:64]}"
    earlier = state.evidence.get(before)
    if earlier is not None and earlier.void is None:
        state.void_evidence(earlier, why)
    other = state.evidence.get(digest)
    if other is None:  # not certified either: that would have taken this node's word
        state.put_evidence(other := _pending(evidence, digest, key, cause))
    if other.void is None:
        state.void_evidence(other, why)
    return rejected(reasons.EVIDENCE_EQUIVOCATION, f"attested {before} before; now {digest}")


def _pending(evidence: facts.Evidence, digest: str, key: str, cause: Cause) -> Evidence:
    return Evidence(
        attested=(),
        evidence_digest=digest,
        participants=tuple(
            [Participant(hop.boot_id, hop.node, hop.shard_id) for hop in evidence.hops]
        ),
        recipe_key=key,
        route_epoch=evidence.route_epoch,
        route_session_id=evidence.route_session_id,
        seams=tuple([hop.end for hop in evidence.hops[:-1]]),
        sequence=cause.sequence,
        time_ms=cause.time_ms,
    )


def _short_of_policy(state: State, evidence: facts.Evidence) -> Refusal | None:
    """Row 12, judged once: with the claims, groups and policy that hold now."""
    policy = state.policy
    hosts, groups = set(), set()
    for hop in evidence.hops:
        host = state.claims[hop.node][hop.shard_id].host
        if policy.counts(host):
            hosts.add(host.id)
        groups.add(state.nodes[hop.node].group)
    groups.discard("")
    if len(evidence.hops) < policy.min_certifying_nodes:
        return _too_few("node", len(evidence.hops), policy.min_certifying_nodes)
    if len(hosts) < policy.min_distinct_hosts:
        return _too_few("host", len(hosts), policy.min_distinct_hosts)
    if len(groups) < policy.min_distinct_groups:
        return _too_few("group", len(groups), policy.min_distinct_groups)
    return None


def _too_few(noun: Literal["node", "host", "group"], found: int, asked: int) -> Refusal:
    code = _POLICY_CODES[noun]
    plural = "" if found == 1 else "s"
    return Refusal(code, f"{found} distinct {noun}{plural}, policy asks for {asked}")


def _certify(state: State, recipe: Recipe, evidence: Evidence, cause: Cause) -> None:
    state.prove_seams(recipe, evidence.seams)
    state.drop_evidence(evidence.evidence_digest)
    if recipe.status != "dark":
        return
    state.touch_recipe(recipe)
    recipe.certification = Certification(
        evidence_digest=evidence.evidence_digest,
        nodes=tuple(hop.node for hop in evidence.participants),
        route_epoch=evidence.route_epoch,
        route_session_id=evidence.route_session_id,
        sequence=cause.sequence,
        time_ms=cause.time_ms,
    )
    state.set_recipe_status(recipe, "certified", cause)
