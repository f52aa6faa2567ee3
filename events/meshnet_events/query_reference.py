"""`docs/reference/queries.md`: what a stranger needs to ask a tracker, in any language.

Members, forms, bounds and codes are read from `queries` and `answers`; only the sentences around are
written here.
"""

from typing import Any

import msgspec

from meshnet_events import queries, subjects
from meshnet_events.answers import NodeAnswer
from meshnet_events.keys import EventKey
from meshnet_events.markdown import GENERATED, REFERENCE, doc, members, table
from meshnet_events.queries import (
    ANSWERS,
    MAX_ANSWER,
    MAX_QUERY,
    NOT_FOUND,
    QUERIES,
    QUERY_ERRORS,
    QUERY_NAMES,
    ClaimQuery,
    NodeQuery,
    QueryError,
    Reply,
)

_REALM = "lab"
_SEQUENCE = 41


def queries_page() -> str:
    """The whole page."""
    errors = ((f"`{code}`", meaning) for code, meaning in QUERY_ERRORS.items())
    return f"""{GENERATED}
# Queries

What a tracker is asked over NATS, and what it answers: a verdict as of a sequence, and no evidence.
Who needs proof replays the log. JSON Schemas are in [`schemas/`](schemas/), as
`query.<name>.schema.json` and `answer.<name>.schema.json`.

## Asking

Publish a request on `{subjects.query("<realm>", "<name>")}`. Its body is a JSON object of at most
{MAX_QUERY:,} bytes with the members of the query: those without a default must be there, and no
others may. An empty body is an empty object. Headers mean nothing.

Whichever tracker is free sends one reply of at most {MAX_ANSWER:,} bytes, to any reply subject that
does not begin with `mesh.` or `$`. Nobody there shows as NATS's own *no responders*. The trackers of a
realm are one NATS micro service, so `nats micro info meshnet-tracker` lists these subjects.

```text
{_exchange()}
```

## What comes back

A JSON object: `sequence`, the sequence of the log as of which it holds, and either `answer` or `error`.
Members that are not known here may come: ignore them, at any place but within
[fingerprint](#fingerprint) and [host](#host), which are parts of facts.

With `min_sequence`, a tracker answers once it has folded the log that far. Give the sequence at which
your own event was acknowledged, and the answer knows of it. If that takes too long it is `behind`.

`error` has two members, `code` and `detail`; the detail is for people. An error that was found before
anything was looked up has sequence 0.

{table(("code", "meaning"), *errors)}
`behind` and `unavailable` pass: ask again. Codes in `reasons`, `refusal` and `obstacles` are on
[the page of reasons](reasons.md).

{_sections()}"""


def _exchange() -> str:
    """A query with its answer, and one with an error."""
    node = EventKey(bytes(range(32))).public
    answer = NodeAnswer(
        boot_id="3769e4f9-167b-4492-993b-0bd3a15e3b5a",
        group="",
        head_digest="5" * 64,
        head_issuerseq=1,
        head_sequence=40,
        label="first",
        may_speak=True,
        node=node,
        status="enrolled",
        shards=("main",),
    )
    error = QueryError(NOT_FOUND, f"{node} never registered a shard spare")
    exchanges: tuple[tuple[queries.Query[Any], Reply[NodeAnswer]], ...] = (
        (NodeQuery(node=node), Reply(sequence=_SEQUENCE, answer=answer)),
        (ClaimQuery(node=node, shard_id="spare"), Reply(sequence=_SEQUENCE, error=error)),
    )
    return "\n\n".join(
        f"{subjects.query(_REALM, queries.name_of(query))}\n"
        f"{queries.encode(query).decode()}\n-> {queries.encode(reply).decode()}"
        for query, reply in exchanges
    )


def _sections() -> str:
    """One section per query, with its answer, then one per struct that answers are made of."""
    _, parts = msgspec.json.schema_components(
        [*QUERIES.values(), *ANSWERS.values()], ref_template=REFERENCE + "{name}"
    )
    sections = []
    for name in QUERY_NAMES:
        query, answer = QUERIES[name], ANSWERS[name]
        sections.append(
            f"## `{name}`\n\n{doc(query)}\n\n{members(parts.pop(query.__name__))}\n"
            f"Answer: {doc(answer)}\n\n{members(parts.pop(answer.__name__))}"
        )
    sections.append("## Parts of answers\n")
    sections += [
        f"### {name}\n\n{schema['description']}\n\n{members(schema)}"
        for name, schema in sorted(parts.items())
    ]
    return "\n".join(sections)
