"""`shard.registered` and `shard.withdrawn`: claims come and go.

`shard.registered`, in this order:

| check | outcome | effect |
|---|---|---|
| the boot was superseded before | `stale-boot` | none: it ends no claim |
| the host differs from that of any claim of this node live before this record | *(no refusal)* | the node is in `conflict` until it is reinstated |
| the boot is new | *(no refusal)* | every claim of the boot before ends, that boot is superseded |
| a fault in `identity` | `bad-identity` | the earlier claim of this shard id ends, the shard is listed as refused |
| the proof does not cover the claim, failed, or is not fresh | `capability:<reason>` | the same |
| | applied | the claim is live; the first of its recipe makes it `dark` |

Registering the same boot, shard, fingerprint and range again updates the claim without ending it;
anything else ends the earlier claim of the shard id (`superseded`). Boots are ordered by first
appearance in a registration that reached the second row; no other fact introduces one.

`shard.withdrawn` ends the live claim of that shard and boot, and is a noop when there is none.
"""  # noqa: E501 - a table's rows are lines

from meshnet_events.admission import Selection, capability_refusal
from meshnet_events.facts import Policy, ShardRegistered, ShardWithdrawn
from meshnet_events.reasons import CAPABILITY, STALE_BOOT, Refusal
from meshnet_tracker.registry.outcome import APPLIED, NOOP, Outcome, refused, rejected
from meshnet_tracker.registry.rows import Claim, Identity, Node, Recipe
from meshnet_tracker.registry.state import Cause, State


def registered(state: State, fact: ShardRegistered, cause: Cause) -> Outcome:
    """A node offers a shard."""
    issuer, boot_id = cause.issuer, fact.boot_id
    row = state.nodes.get(issuer)
    is_new_boot = row is None or row.boot_id != boot_id
    if is_new_boot and state.is_superseded(issuer, boot_id):
        return rejected(STALE_BOOT, f"boot_id {boot_id} was superseded; restart the process")
    if row is None:
        row = state.touch_node(issuer)
    earlier = state.claim(issuer, fact.shard_id)
    is_live = earlier is not None and earlier.status == "live"
    live = earlier if is_live else state.any_live_claim(issuer)
    if live is not None and live.host.id != fact.host.id and not row.conflict:
        _mark_conflict(state, row, live, fact, cause)
    if is_new_boot:
        state.end_claims(issuer, "superseded", cause)
        state.supersede_boot(row, successor=boot_id)

    identity = state.identities.read(cause.identity)
    if isinstance(identity, Refusal):
        return _refuse(state, fact, cause, earlier, None, identity)
    if refusal := _not_admitted(identity, fact, state.policy, cause.time_ms):
        return _refuse(state, fact, cause, earlier, identity, refusal)
    if earlier is not None and earlier.status == "live":
        if _is_the_same(earlier, identity):
            _update(state, earlier, identity, fact, cause)
            return APPLIED
        state.end_claim(earlier, "superseded", cause)
    _list(state, _claim(row.node, fact, cause, identity), earlier, cause)
    if identity.recipe_key not in state.recipes:
        _make_known(state, identity, fact, cause)
    return APPLIED


def withdrawn(state: State, fact: ShardWithdrawn, cause: Cause) -> Outcome:
    """A node takes a shard back."""
    claim = state.claim(cause.issuer, fact.shard_id)
    if claim is None or claim.status != "live" or claim.boot_id != fact.boot_id:
        return NOOP
    state.end_claim(claim, "withdrawn", cause)
    return APPLIED


def _mark_conflict(
    state: State, row: Node, live: Claim, fact: ShardRegistered, cause: Cause
) -> None:
    """A key that speaks from two hosts was copied."""
    before = row.status
    state.touch_node(row.node).conflict = True
    why = f"registered from host {fact.host.id[:12]} while live on host {live.host.id[:12]}"
    state.note_node_status(row, before, cause, why)


def _not_admitted(
    identity: Identity, fact: ShardRegistered, policy: Policy, now_ms: int
) -> Refusal | None:
    """The admission rule, with the broker's time as now."""
    proven = fact.capability
    refusal = capability_refusal(
        Selection(
            identity.artifact_id,
            identity.shard_start,
            identity.shard_end,
            identity.recipe_id,
            identity.recipe_version,
            identity.backend_id,
            fact.device,
            identity.model_artifact_digest,
            identity.runtime_recipe_digest,
        ),
        proven,
        status=proven.status,
        diagnostics=proven.diagnostics,
        validated_at=proven.validated_at_ms,
        now=now_ms,
        max_age=policy.max_report_age_ms,
        max_skew=policy.max_clock_skew_ms,
        per_second=1000,
    )
    return None if refusal is None else Refusal(CAPABILITY + refusal.reason, refusal.message)


def _is_the_same(earlier: Claim, identity: Identity) -> bool:
    """Whether fingerprint and range are what they were. The boot is: an older one has ended."""
    was = earlier.identity
    return was is identity or (
        was is not None
        and was.recipe_key == identity.recipe_key
        and was.shard_start == identity.shard_start
        and was.shard_end == identity.shard_end
    )


def _update(
    state: State, claim: Claim, identity: Identity, fact: ShardRegistered, cause: Cause
) -> None:
    """The claim goes on with what the newer registration says of it."""
    state.touch_claim(claim)
    claim.device = fact.device
    claim.endpoint = fact.endpoint
    claim.host = fact.host
    claim.identity = identity
    claim.sequence = cause.sequence
    claim.synthetic = fact.capability.synthetic
    claim.time_ms = cause.time_ms
    claim.validated_at_ms = fact.capability.validated_at_ms


def _refuse(
    state: State,
    fact: ShardRegistered,
    cause: Cause,
    earlier: Claim | None,
    identity: Identity | None,
    refusal: Refusal,
) -> Outcome:
    """The earlier claim of the shard id ends all the same, and the refusal is listed."""
    if earlier is not None and earlier.status == "live":
        state.end_claim(earlier, "superseded", cause)
    claim = _claim(cause.issuer, fact, cause, identity)
    claim.status, claim.refusal, claim.refusal_detail = "refused", refusal.code, refusal.detail
    _list(state, claim, earlier, cause)
    return refused(refusal)


def _claim(node: str, fact: ShardRegistered, cause: Cause, identity: Identity | None) -> Claim:
    return Claim(
        boot_id=fact.boot_id,
        device=fact.device,
        endpoint=fact.endpoint,
        host=fact.host,
        identity=identity,
        node=node,
        sequence=cause.sequence,
        shard_id=fact.shard_id,
        status="live",
        synthetic=fact.capability.synthetic,
        time_ms=cause.time_ms,
        validated_at_ms=fact.capability.validated_at_ms,
    )


def _list(state: State, claim: Claim, earlier: Claim | None, cause: Cause) -> None:
    """Put `claim` in the place of `earlier`, which is live no more."""
    before = "unknown" if earlier is None else earlier.status
    state.put_claim(claim)
    if before != claim.status:
        subject = f"{claim.node}/{claim.shard_id}"
        state.append_transition("shard", subject, before, claim.status, cause, claim.refusal_detail)


def _make_known(state: State, identity: Identity, fact: ShardRegistered, cause: Cause) -> None:
    state.put_recipe(
        Recipe(
            certification=None,
            identity=fact.identity.copy(),
            layer_count=identity.layer_count,
            model_artifact_digest=identity.model_artifact_digest,
            proven_seams=(),
            recipe_key=identity.recipe_key,
            runtime_recipe_digest=identity.runtime_recipe_digest,
            sequence=cause.sequence,
            status="dark",
            status_sequence=cause.sequence,
            time_ms=cause.time_ms,
        ),
        cause,
    )
