"""One record in, one outcome out.

`Fold` is the registry's only entry point. It takes a record through the gate and the rules of its
fact, keeps the accounts, and returns the outcome with the transitions that the record caused. The
same records in the same order give the same state, whoever folds them, wherever and whenever.

    sequence 1     must create this realm, or the history is not ours: `FoldFault`
    later          gate steps 1 to 6 -> chain -> shape -> who may speak -> the fact's own rules

From step 7 on an event is its issuer's next one, and its chain advances whatever is decided after;
otherwise one refused registration would lock a node out for good.

| who may speak | rejected |
|---|---|
| an operator fact from a key that is no operator | `not-operator` |
| a node fact from a node that is not enrolled, where the policy requires it | `not-enrolled` |
| a node fact from a suspended node | `suspended` |

Checking signatures can be left out (`verify=False`, for what was checked before), or done in bulk
by the caller between `screen` and `apply_screened`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from meshnet_events import facts
from meshnet_events.gate import Gate
from meshnet_events.reasons import NOT_ENROLLED, NOT_OPERATOR, SUSPENDED, Refusal
from meshnet_events.record import Record
from meshnet_events.screened import Event, Screened, follow
from meshnet_tracker.registry.outcome import (
    APPLIED,
    FoldFault,
    FoldFaultReason,
    Outcome,
    refused,
    rejected,
)
from meshnet_tracker.registry.rows import Chain, Node, RefusedRecord, Transition
from meshnet_tracker.registry.rules import evidence, handshakes, nodes, realm, recipes, shards
from meshnet_tracker.registry.state import NO_EVENT, Cause, State

Rule = Callable[[State, Any, Cause], Outcome]

OPERATOR_RULES: dict[type[facts.Fact], Rule] = {
    facts.RealmCreated: realm.created_again,
    facts.RealmContinued: realm.continued,
    facts.OperatorsChanged: realm.operators_changed,
    facts.PolicyChanged: realm.policy_changed,
    facts.NodeEnrolled: nodes.enrolled,
    facts.NodeSuspended: nodes.suspended,
    facts.NodeReinstated: nodes.reinstated,
    facts.RecipeRevoked: recipes.revoked,
    facts.RecipeReinstated: recipes.reinstated,
}
NODE_RULES: dict[type[facts.Fact], Rule] = {
    facts.ShardRegistered: shards.registered,
    facts.ShardWithdrawn: shards.withdrawn,
    facts.HandshakeCompleted: handshakes.completed,
    facts.ForwardAttested: evidence.attested,
}


_TOGETHER = 16
# checking a signature pushes everything else out of the processor's nearest cache
_VERIFIED_TOGETHER = 1_024


class Applied(Struct, frozen=True, gc=False):
    """What one record did."""

    outcome: Outcome
    transitions: tuple[Transition, ...]


_QUIETLY = Applied(APPLIED, ())
_STRANGER = Node("")


class Fold:
    """Applies the records of one realm, in order, to one state."""

    def __init__(self, state: State, *, operator: str | None = None) -> None:
        """`operator` is the root of trust that the caller was told, if any."""
        self.state = state
        self.operator = operator
        self._gate = Gate(state.name)

    def screen(self, record: Record) -> Screened:
        """The part that looks at this record alone; `apply_screened` takes the result."""
        return self._gate.screen(record.body, record.subject)

    def apply(self, record: Record, *, verify: bool = True) -> Applied:
        """Apply the next record. Raises `FoldFault` when it cannot stand here."""
        screened = self.screen(record)
        return self.apply_screened(record, screened.verified() if verify else screened.result)

    def apply_all(self, records: Sequence[Record], *, verify: bool = True) -> None:
        """Apply the next records, a few together: each step for all of them, which caches like."""
        screen = self._gate.screen
        together = _VERIFIED_TOGETHER if verify else _TOGETHER
        for at in range(0, len(records), together):
            few = records[at : at + together]
            if verify:
                screened = [screen(record.body, record.subject) for record in few]
                results = [one.verified() for one in screened]
            else:
                results = [screen(record.body, record.subject).result for record in few]
            for record, result in zip(few, results, strict=True):
                self.apply_screened(record, result)

    def apply_screened(self, record: Record, screened: Event | Refusal) -> Applied:
        """Apply the next record, whose steps 1 to 6 and 8 gave `screened`."""
        state = self.state
        sequence = record.sequence
        if sequence != state.sequence + 1:
            raise FoldFault(
                FoldFaultReason.GAP, f"sequence {sequence} arrived; expected {state.sequence + 1}"
            )
        transitions = state.changes.transitions
        before = len(transitions)
        if isinstance(screened, Refusal):
            if sequence == 1:
                raise _bad_realm(f"is {screened.code}: {screened.detail}")
            outcome = refused(screened)
        else:
            now_ms = record.time_ns // 1_000_000  # `Record.time_ms`, without a call every time
            cause = Cause(
                sequence,
                now_ms,
                screened.issuer,
                screened.digest,
                screened.type,
                screened.identity,
            )
            is_first = sequence == 1
            outcome = self._create(screened, cause) if is_first else self._speak(screened, cause)
        code = outcome.code
        if code is not None:
            self._list_refusal(record, screened, outcome)
        state.count(sequence, record.time_ns, code or outcome.kind)
        if len(transitions) == before:
            return _QUIETLY if outcome is APPLIED else Applied(outcome, ())
        return Applied(outcome, tuple(transitions[before:]))

    def _create(self, event: Event, cause: Cause) -> Outcome:
        head = follow(NO_EVENT, event)
        if isinstance(head, Refusal):
            raise _bad_realm(f"is {head.code}: {head.detail}")
        if not isinstance(event.data, facts.RealmCreated):
            raise _bad_realm(f"holds {event.type}, not realm.created")
        outcome = realm.create_realm(self.state, event.data, cause, self.operator)
        self.state.advance_chain(Chain(head.issuerseq, head.digest, event.issuer, cause.sequence))
        return outcome

    def _speak(self, event: Event, cause: Cause) -> Outcome:
        state, issuer, fact = self.state, event.issuer, event.data
        head = follow(state.chains.get(issuer, NO_EVENT), event)
        if isinstance(head, Refusal):
            return refused(head)
        # `advance_chain`, once for every record
        state.chains[issuer] = Chain(event.issuerseq, event.digest, issuer, cause.sequence)
        state.changes.chains.add(issuer)
        if isinstance(fact, Refusal):
            return refused(fact)
        rule = NODE_RULES.get(type(fact))
        if rule is None:
            if issuer not in state.expect_realm().operators:
                return rejected(NOT_OPERATOR, f"{issuer} is no operator")
            rule = OPERATOR_RULES[type(fact)]
        elif bars := state.nodes.get(issuer, _STRANGER).bars(state.policy):
            # conflict bars the claims of a node, not its word
            if NOT_ENROLLED in bars:
                return rejected(NOT_ENROLLED, f"{issuer} is not enrolled")
            if SUSPENDED in bars:
                return rejected(SUSPENDED, f"{issuer} is suspended")
        return rule(state, fact, cause)

    def _list_refusal(self, record: Record, screened: Event | Refusal, outcome: Outcome) -> None:
        if isinstance(screened, Event):
            issuer, type_ = screened.issuer, screened.type[:128]
        else:
            issuer, type_ = record.subject.rsplit(".", 1)[-1][:64], ""
        self.state.changes.refusals.append(
            RefusedRecord(
                code=outcome.code or "",
                detail=outcome.detail,
                issuer=issuer,
                sequence=record.sequence,
                time_ms=record.time_ms,
                type=type_,
            )
        )


def _bad_realm(fault: str) -> FoldFault:
    return FoldFault(FoldFaultReason.BAD_REALM, f"sequence 1 {fault}")
