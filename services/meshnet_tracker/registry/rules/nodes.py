"""Operator facts about nodes.

| fact | rejected | noop | applied |
|---|---|---|---|
| `node.enrolled` | `chain_from` not above the last: `bad-chain` | same data as the newest enrolment | enrolled, label, group; with `chain_from` its chain restarts there and all its claims end (`superseded`) |
| `node.suspended` | unknown: `unknown-node` | suspended already | all its claims end (`suspended`) |
| `node.reinstated` | unknown: `unknown-node` | neither suspended nor in conflict | both lifted; all its claims end and every boot seen so far is superseded |

Enrolling lifts neither suspension nor conflict.
"""  # noqa: E501 - a table's rows are lines

from meshnet_events.facts import NodeEnrolled, NodeReinstated, NodeSuspended
from meshnet_events.reasons import BAD_CHAIN, UNKNOWN_NODE
from meshnet_tracker.registry.outcome import APPLIED, NOOP, Outcome, rejected
from meshnet_tracker.registry.rows import Chain
from meshnet_tracker.registry.state import Cause, State


def enrolled(state: State, fact: NodeEnrolled, cause: Cause) -> Outcome:
    """The node may speak; with `chain_from`, it may do so again after losing its place."""
    row = state.nodes.get(fact.node)
    if (
        row is not None
        and row.enrolled
        and (row.label, row.group, row.chain_from) == (fact.label, fact.group, fact.chain_from)
    ):
        return NOOP
    last = state.chain_of(fact.node).issuerseq
    if fact.chain_from is not None and fact.chain_from <= last:
        return rejected(BAD_CHAIN, f"chain_from is {fact.chain_from}; the chain is at {last}")
    row = state.touch_node(fact.node)
    before = row.status
    row.enrolled = True
    row.label, row.group, row.chain_from = fact.label, fact.group, fact.chain_from
    if fact.chain_from is not None:
        state.end_claims(fact.node, "superseded", cause)
        state.advance_chain(Chain(fact.chain_from - 1, cause.digest, fact.node, cause.sequence))
    state.note_node_status(row, before, cause)
    return APPLIED


def suspended(state: State, fact: NodeSuspended, cause: Cause) -> Outcome:
    """The node may not speak, and nothing that ends here comes back by itself."""
    if not state.is_known(fact.node):
        return rejected(UNKNOWN_NODE, f"no record and no enrolment of {fact.node}")
    row = state.nodes.get(fact.node)
    if row is not None and row.suspended:
        return NOOP
    row = state.touch_node(fact.node)
    before = row.status
    row.suspended = True
    state.end_claims(fact.node, "suspended", cause)
    state.note_node_status(row, before, cause, fact.reason)
    return APPLIED


def reinstated(state: State, fact: NodeReinstated, cause: Cause) -> Outcome:
    """Suspension and conflict are lifted; whichever process registers first holds the host."""
    if not state.is_known(fact.node):
        return rejected(UNKNOWN_NODE, f"no record and no enrolment of {fact.node}")
    row = state.nodes.get(fact.node)
    if row is None or not (row.suspended or row.conflict):
        return NOOP
    row = state.touch_node(fact.node)
    before = row.status
    row.suspended = row.conflict = False
    for _, claim in sorted(state.claims.get(fact.node, {}).items()):
        if claim.status == "live":
            state.end_claim(claim, "superseded", cause)
        elif claim.status == "suspended":
            # its node is not suspended any more, yet the claim is history: its boot is superseded
            state.set_claim_status(claim, "superseded", cause)
    state.supersede_boot(row, successor=None)
    state.note_node_status(row, before, cause, fact.reason)
    return APPLIED
