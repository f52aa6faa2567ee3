"""Operator facts about the realm itself.

| fact | rejected | noop | applied |
|---|---|---|---|
| `realm.created` | anywhere but sequence 1: `out-of-place` (at 1 anything else faults the reader) | | the realm exists |
| `realm.continued` | other realm, or `last_sequence` is not this sequence - 1: `out-of-place` | | the epoch is recorded |
| `operators.changed` | empty, repeated or malformed keys: `bad-operators` | the same set | in force for later records |
| `policy.changed` | asks too little: `bad-policy` | equal | in force for later records |
"""  # noqa: E501 - a table's rows are lines

from meshnet_events.facts import OperatorsChanged, PolicyChanged, RealmContinued, RealmCreated
from meshnet_events.keys import decode_public
from meshnet_events.reasons import BAD_OPERATORS, BAD_POLICY, OUT_OF_PLACE
from meshnet_tracker.registry.outcome import (
    APPLIED,
    NOOP,
    FoldFault,
    FoldFaultReason,
    Outcome,
    rejected,
)
from meshnet_tracker.registry.rows import Epoch, Realm
from meshnet_tracker.registry.state import Cause, State


def operators_fault(operators: tuple[str, ...]) -> str | None:
    """Say why these keys cannot be the operators, or None."""
    if not operators:
        return "the list of operators is empty"
    if len(set(operators)) < len(operators):
        return "an operator is listed twice"
    for index, key in enumerate(operators):
        if decode_public(key) is None:
            return f"operators[{index}] is not an NKey user public key (U…)"
    return None


def create_realm(state: State, fact: RealmCreated, cause: Cause, operator: str | None) -> Outcome:
    """Take sequence 1; raises `FoldFault` unless it creates this realm.

    `operator` is the key that the caller was told is the root of trust, if any.
    """
    fault = operators_fault(fact.operators) or fact.policy.fault()
    if fault is None and fact.realm != state.name:
        fault = f"it creates the realm {fact.realm[:40]!r}; expected {state.name!r}"
    if fault is None and cause.issuer not in fact.operators:
        fault = "its issuer is not among the operators that it names"
    if fault is not None:
        raise FoldFault(FoldFaultReason.BAD_REALM, f"sequence 1 is no valid realm.created: {fault}")
    if operator is not None and cause.issuer != operator:
        raise FoldFault(
            FoldFaultReason.WRONG_ROOT,
            f"the realm was created by {cause.issuer}; expected {operator}",
        )
    realm = state.realm = Realm(
        created_time_ms=cause.time_ms,
        epochs=(),
        operators=tuple(sorted(fact.operators)),
        policy=fact.policy,
        policy_sequence=cause.sequence,
        realm=fact.realm,
        root=cause.issuer,
    )
    state.put_policy(realm, fact.policy)
    return APPLIED


def created_again(_: State, __: RealmCreated, cause: Cause) -> Outcome:
    """A realm is created once."""
    return rejected(OUT_OF_PLACE, f"realm.created at sequence {cause.sequence}; only 1 may hold it")


def continued(state: State, fact: RealmContinued, cause: Cause) -> Outcome:
    """A new stream goes on where a lost one ended. Reader and auditor check the rest of it."""
    if fact.realm != state.name:
        return rejected(OUT_OF_PLACE, f"it continues {fact.realm[:40]!r}; this is {state.name!r}")
    if fact.last_sequence != cause.sequence - 1:
        return rejected(
            OUT_OF_PLACE,
            f"last_sequence is {fact.last_sequence}; expected {cause.sequence - 1}",
        )
    realm = state.expect_realm()
    realm.epochs = (*realm.epochs, Epoch(fact.last_sequence, fact.log_root, fact.stream_created))
    return APPLIED


def operators_changed(state: State, fact: OperatorsChanged, _: Cause) -> Outcome:
    """Other operators, from the next record on."""
    if fault := operators_fault(fact.operators):
        return rejected(BAD_OPERATORS, fault)
    realm = state.expect_realm()
    operators = tuple(sorted(fact.operators))
    if operators == realm.operators:
        return NOOP
    realm.operators = operators
    return APPLIED


def policy_changed(state: State, fact: PolicyChanged, cause: Cause) -> Outcome:
    """Another policy, from the next record on."""
    if fault := fact.policy.fault():
        return rejected(BAD_POLICY, fault)
    realm = state.expect_realm()
    if fact.policy == realm.policy:
        return NOOP
    realm.policy_sequence = cause.sequence
    state.put_policy(realm, fact.policy)
    return APPLIED
