"""The sentences that people read: why a recipe or a claim is what it is, and what would change it.

A recipe gets one sentence, the first line of its page:

    dark since sequence 12: no distributed forward has certified it yet; a certifying route exists
    over n1 and n2, and `meshnet node certify` runs one

A claim gets one for each reason that bars it, in the order of the eligibility table: the reason,
since which sequence where the rows tell, what happened, and what would flip it:

    withdrawn at sequence 41: the node took the shard back. The node can register it again.

Nodes are called by their labels, or by the beginning of their keys. The sentences are for people:
programs read the codes, and nothing here is part of a state digest.
"""

import msgspec

from meshnet_events import reasons as codes
from meshnet_events.envelope import rfc3339
from meshnet_tracker.recipe import Mismatch, explain
from meshnet_tracker.registry.eligibility import LIVE_FOR_S, Liveness, judge
from meshnet_tracker.registry.routing.plan import Purpose, Route, plan
from meshnet_tracker.registry.rows import Claim
from meshnet_tracker.registry.state import State


def why_recipe(state: State, recipe_key: str, liveness: Liveness | None = None) -> str:
    """The status of a recipe, and the sentence that explains it."""
    recipe = state.recipes.get(recipe_key)
    if recipe is None:
        return f"unknown: no admitted claim has offered {recipe_key}"
    if recipe.status == "revoked":
        return (
            f"revoked by an operator at sequence {recipe.status_sequence}: {recipe.said_why}; "
            "it can be reinstated, and must then be certified anew"
        )
    proof = recipe.certification
    if proof is None:
        outlook = _outlook(state, recipe_key, "certify", liveness)
        return (
            f"{recipe.status} since sequence {recipe.status_sequence}: "
            f"no distributed forward has certified it yet; {outlook}"
        )
    return (
        f"{recipe.status} at {rfc3339(proof.time_ms)} (sequence {proof.sequence}) "
        f"by session {proof.route_session_id} over {len(proof.nodes)} nodes: "
        f"{_list(state, proof.nodes)}; {_outlook(state, recipe_key, 'serve', liveness)}"
    )


def why_claim(state: State, claim: Claim, liveness: Liveness | None = None) -> tuple[str, ...]:
    """One sentence for each reason that bars the claim; empty when nothing does."""
    return tuple(
        _sentence(state, claim, reason) for reason in judge(state, claim, liveness).reasons
    )


def why_different(state: State, left: Claim, right: Claim) -> tuple[Mismatch, ...]:
    """Every axis in which the recipe of `right` is not that of `left`; empty for the same recipe.

    Blocks are compared as the tracker keeps them, so there is nothing to compare where an identity
    has a fault (`bad-identity`) or no claim of the recipe was ever admitted (`unknown-recipe`).
    """
    if left.recipe_key is not None and left.recipe_key == right.recipe_key:
        return ()
    missing = [
        fault for claim in (left, right) if (fault := _incomparable(state, claim)) is not None
    ]
    if missing:
        return tuple(missing)
    return explain(_block(state, left), _block(state, right))


def _outlook(state: State, recipe_key: str, purpose: Purpose, liveness: Liveness | None) -> str:
    found = plan(state, recipe_key, purpose, liveness=liveness)
    adjective = "serving" if purpose == "serve" else "certifying"
    if isinstance(found, Route):
        nodes = tuple(hop.node for hop in found.hops)
        next_step = ", and `meshnet node certify` runs one" if purpose == "certify" else ""
        return f"a {adjective} route exists over {_list(state, nodes)}{next_step}"
    return f"no {adjective} route exists: {'; '.join(one.detail for one in found.obstacles)}"


def _sentence(state: State, claim: Claim, reason: str) -> str:
    node = name_of(state, claim.node)
    ended = f"{reason} at sequence {claim.ended_sequence}"
    since = _since(state, claim, reason)
    match reason:
        case codes.REFUSED:
            return (
                f"refused at sequence {claim.sequence}: {claim.refusal}: {claim.refusal_detail}. "
                "The node can register the shard again once that is mended."
            )
        case codes.WITHDRAWN:
            return f"{ended}: the node took the shard back. The node can register it again."
        case codes.SUPERSEDED:
            return (
                f"{ended}: a newer registration or boot took its place, or an operator restarted "
                "the node's chain or reinstated it. Its current process must register the shard."
            )
        case codes.CONFLICT:
            return (
                f"{since}: two hosts use the key of {node}, as if it were copied. "
                "An operator must reinstate the node, and its processes must restart."
            )
        case codes.SUSPENDED:
            return (
                f"{ended if claim.status == 'suspended' else since}: an operator suspended {node}. "
                "An operator must reinstate the node, and its processes must restart."
            )
        case codes.NOT_ENROLLED:
            return (
                "not-enrolled: the policy in force since sequence "
                f"{state.expect_realm().policy_sequence} requires enrolment, and {node} has none. "
                "An operator can enrol it."
            )
        case codes.SYNTHETIC:
            return (
                f"synthetic since sequence {claim.sequence}: its backend computes no model. "
                "The node can register the shard with one that does."
            )
        case codes.DARK:
            recipe = state.recipes[claim.recipe_key or ""]
            return (
                f"dark since sequence {recipe.status_sequence}: no distributed forward has certified "
                "the recipe yet. `meshnet node certify` runs one, which all its nodes must attest."
            )
        case codes.REVOKED:
            recipe = state.recipes[claim.recipe_key or ""]
            return (
                f"revoked at sequence {recipe.status_sequence}: "
                f"an operator revoked the recipe: {recipe.revoked_reason}. "
                "An operator must reinstate it, and a forward certify it anew."
            )
        case codes.NOT_LIVE:
            return (
                f"not-live: no presence within {LIVE_FOR_S} s named boot {claim.boot_id} and shard "
                f"{claim.shard_id}. {node} must run and be connected."
            )
        case _:
            raise LookupError(f"there is no sentence for the reason {reason!r}")


def _since(state: State, claim: Claim, reason: str) -> str:
    """`reason`, and since when where it is the status of the claim's node."""
    node = state.nodes[claim.node]
    return f"{reason} since sequence {node.status_sequence}" if node.status == reason else reason


def _incomparable(state: State, claim: Claim) -> Mismatch | None:
    where = f"{name_of(state, claim.node)}/{claim.shard_id}"
    if claim.recipe_key is None:
        return Mismatch(
            codes.BAD_IDENTITY, f"{where} has no sound identity: {claim.refusal_detail}"
        )
    if claim.recipe_key not in state.recipes:
        return Mismatch(
            codes.UNKNOWN_RECIPE, f"{where} offers {claim.recipe_key}, never admitted from anyone"
        )
    return None


def _block(state: State, claim: Claim) -> object:
    return msgspec.json.decode(state.recipes[claim.recipe_key or ""].identity)


def name_of(state: State, node: str) -> str:
    """A node as people call it: its label, else the beginning of its key."""
    row = state.nodes.get(node)
    return row.label if row is not None and row.label else f"{node[:12]}…"


def _list(state: State, nodes: tuple[str, ...]) -> str:
    *most, last = (name_of(state, node) for node in nodes)
    return f"{', '.join(most)} and {last}" if most else last
