"""The registry's rows as tables: what one commit writes, and the state that reading gives back.

Every table holds rows of JSON whose members include the table's key, so one description serves
writing, reading and comparing. Rows of a batch travel as one JSON array: SQLite takes it apart in a
single statement, for which Python lets go of its lock, instead of one call (and one wait for that
lock, which the fold holds) for each row.

`transitions` and `refusals` are appended and never read back into the state.

A table is named in five places here (`Row`, `TABLES`, `_changed`, `_put`, `rows_of`), beside its
rows in `State` and what changed of them in `Changes`. Mypy and tests/property/test_reload.py find
one that is missing from any of them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import assert_never

import msgspec
from msgspec import Struct

from meshnet_tracker.registry.rows import (
    Chain,
    Claim,
    Evidence,
    Handshake,
    Identity,
    Node,
    Realm,
    Recipe,
)
from meshnet_tracker.registry.state import Changes, State

_encode = msgspec.json.Encoder(order="sorted").encode


class Boot(Struct, frozen=True, gc=False):
    """A boot that is history: it must never return."""

    boot_id: str
    node: str


class Attestation(Struct, frozen=True, gc=False):
    """What a node attested in its current boot for a session and epoch.

    A session id is any text, and SQLite cuts text at a NUL when it takes JSON apart: as part of a
    key it is spelled in hex. Every other member of a key has a form that holds no NUL.
    """

    evidence_digest: str
    node: str
    route_epoch: int
    session_hex: str


Row = Chain | Node | Boot | Claim | Recipe | Handshake | Attestation | Evidence


class Table(Struct, frozen=True, gc=False):
    """A table of rows: its key, and further members that are worth a column."""

    name: str
    key: tuple[str, ...]
    row: type[Row]
    columns: tuple[str, ...] = ()


TABLES = (
    Table("chains", ("issuer",), Chain, ("issuerseq", "sequence")),
    Table("nodes", ("node",), Node, ("label", "group", "boot_id", "suspended", "conflict")),
    Table("boots", ("node", "boot_id"), Boot),
    Table("claims", ("node", "shard_id"), Claim, ("status", "boot_id", "sequence")),
    Table("recipes", ("recipe_key",), Recipe, ("status", "layer_count", "sequence")),
    Table("handshakes", ("node", "peer", "recipe_key"), Handshake, ("accepted", "sequence")),
    Table("attestations", ("node", "session_hex", "route_epoch"), Attestation),
    Table("evidence", ("evidence_digest",), Evidence, ("recipe_key", "void", "sequence")),
)


class TableBatch(Struct, frozen=True, gc=False):
    """What changes in one table: rows to put and keys to remove, each a JSON array."""

    table: Table
    rows: str | None
    gone: str | None


class Batch(Struct, frozen=True, gc=False):
    """What one commit writes, besides the position."""

    time_ns: int
    counts: str
    realm: str
    tables: tuple[TableBatch, ...]
    transitions: str | None
    refusals: str | None


def take_batch(state: State) -> Batch:
    """Everything that changed in `state` since this was last called."""
    return batch_of(state, state.take_changes())


def batch_of(state: State, changes: Changes) -> Batch:
    """What `changes`, just taken from `state`, have a commit write."""
    return Batch(
        time_ns=state.time_ns,
        counts=_text(state.counts),
        realm=_text(state.realm),
        tables=tuple(_batches(state, changes)),
        transitions=_text(changes.transitions) if changes.transitions else None,
        refusals=_text(changes.refusals) if changes.refusals else None,
    )


def _changed(
    state: State, changes: Changes
) -> dict[str, Iterable[tuple[str | tuple[str | int, ...], Row | None]]]:
    """By table: key and row of what changed; None for a row that is gone."""
    return {
        "chains": ((key, state.chains[key]) for key in changes.chains),
        "nodes": ((key, state.nodes[key]) for key in changes.nodes),
        "boots": (((node, boot_id), Boot(boot_id, node)) for node, boot_id in changes.boots),
        "claims": ((key, state.claims[key[0]][key[1]]) for key in changes.claims),
        "recipes": ((key, state.recipes[key]) for key in changes.recipes),
        "handshakes": ((key, state.handshakes.get(key)) for key in changes.handshakes),
        "attestations": (
            ((node, _hex(session), epoch), _attestation(state, node, session, epoch))
            for node, session, epoch in changes.attestations
        ),
        "evidence": (((key,), state.evidence.get(key)) for key in changes.evidence),
    }


def _batches(state: State, changes: Changes) -> Iterator[TableBatch]:
    changed = _changed(state, changes)
    for table in TABLES:
        rows, gone = [], []
        for key, row in changed[table.name]:
            if row is None:
                gone.append(key)
            else:
                rows.append(row)
        if rows or gone:
            yield TableBatch(table, _text(rows) if rows else None, _text(gone) if gone else None)


def _attestation(state: State, node: str, session: str, epoch: int) -> Attestation | None:
    digest = state.attestations.get(node, {}).get((session, epoch))
    return None if digest is None else Attestation(digest, node, epoch, _hex(session))


def _hex(session: str) -> str:
    return session.encode().hex()


def _text(value: object) -> str:
    return _encode(value).decode()


def restore(
    name: str,
    *,
    sequence: int,
    time_ns: int,
    counts: str,
    realm: str,
    rows: Callable[[Table], Iterable[str]],
) -> State:
    """The state whose rows `rows` gives, table by table. It has no changes of its own."""
    state = State(name)
    state.sequence, state.time_ns = sequence, time_ns
    state.counts.update(msgspec.json.decode(counts, type=dict[str, int]))
    state.realm = msgspec.json.decode(realm, type=Realm | None)
    if state.realm is not None:
        state.policy = state.realm.policy
    shared: dict[Identity, Identity] = {}
    for table in TABLES:
        decode = msgspec.json.Decoder(table.row).decode
        for text in rows(table):
            _put(state, decode(text), shared)
    state.take_changes()
    return state


def _put(state: State, row: Row, shared: dict[Identity, Identity]) -> None:
    match row:
        case Chain():
            state.chains[row.issuer] = row
        case Node():
            state.nodes[row.node] = row
        case Boot():
            state.boots.setdefault(row.node, set()).add(row.boot_id)
        case Claim():
            if row.identity is not None:
                row.identity = shared.setdefault(row.identity, row.identity)
            state.put_claim(row)
        case Recipe():
            state.recipes[row.recipe_key] = row
        case Handshake():
            state.put_handshake(row)
        case Attestation():
            session = bytes.fromhex(row.session_hex).decode()
            state.put_attestation(row.node, session, row.route_epoch, row.evidence_digest)
        case Evidence():
            state.put_evidence(row)
        case _:
            assert_never(row)


def rows_of(state: State) -> dict[str, list[bytes]]:
    """Every row of `state` as JSON, table by table and sorted: what makes two states equal."""
    whole = Changes(
        chains=set(state.chains),
        nodes=set(state.nodes),
        boots=[(node, boot) for node, boots in state.boots.items() for boot in boots],
        claims={(claim.node, claim.shard_id) for claim in state.all_claims()},
        recipes=set(state.recipes),
        handshakes=dict.fromkeys(state.handshakes, True),
        attestations={
            (node, *session): True
            for node, words in state.attestations.items()
            for session in words
        },
        evidence=dict.fromkeys(state.evidence, True),
    )
    tables = {
        batch.table.name: sorted(
            bytes(row) for row in msgspec.json.decode(batch.rows or "[]", type=list[msgspec.Raw])
        )
        for batch in _batches(state, whole)
    }
    tables["realm"] = [_encode(state.realm)]
    tables["counts"] = [_encode(state.counts)]
    return tables
