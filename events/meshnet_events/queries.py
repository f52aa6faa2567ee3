"""What a node asks a tracker, and what it hears: JSON over NATS requests.

A query is published as a request on `mesh.<realm>.api.<name>` (`subjects.query`), its members as a
JSON object; whichever tracker is free answers. An answer is a verdict as of a sequence, and no
evidence: who needs proof replays the log.

    mesh.lab.api.claim  {"node":"UBXW…P4T2","shard_id":"main"}
    ->                  {"sequence":41,"answer":{"node":"UBXW…P4T2",…}}
    or                  {"sequence":41,"error":{"code":"not-found","detail":"…"}}

| name | query | answer |
|---|---|---|
| `claim` | `ClaimQuery` | `ClaimAnswer`: the newest registration of one shard |
| `node` | `NodeQuery` | `NodeAnswer`: who a key is in the realm, and its chain's head |
| `head` | `HeadQuery` | `HeadAnswer`: the message in which that head is, byte for byte |
| `plan` | `PlanQuery` | `PlanAnswer`: a route with its hops, or every obstacle |
| `recipe` | `RecipeQuery` | `RecipeAnswer`: a recipe by its key, or by 8 hex digits or more of it |
| `clock` | `ClockQuery` | `ClockAnswer`: the broker's time, as the stream's leader tells it |

With `min_sequence` a tracker answers once it has folded that far, or says `behind` after a bounded
wait. A query has exactly its members; what answers hold is told in `answers`.

Both sides read hostile bytes: `decode_query` and `decode_reply` never raise. What is about another
node or recipe than was asked about is no answer.

Left out: how long either side waits, and which tracker answers (`meshnet_bus.service`, `.asker`).
"""

import re
from typing import Annotated, Any, Generic

import msgspec
from msgspec import Meta, Struct

from meshnet_events.answers import (
    AnswerType,
    ClaimAnswer,
    ClockAnswer,
    HeadAnswer,
    LongText,
    NodeAnswer,
    PlanAnswer,
    Purpose,
    RecipeAnswer,
    fitted,
)
from meshnet_events.envelope import MAX_BODY
from meshnet_events.forms import (
    SHARD_ID_PATTERN,
    Count,
    PublicKey,
    ShardId,
    ShortText,
    is_key,
    is_shard_id,
)

CLAIM = "claim"
NODE = "node"
HEAD = "head"
PLAN = "plan"
RECIPE = "recipe"
CLOCK = "clock"

MAX_QUERY = 16_384
"""The most bytes that a query may have."""
MAX_ANSWER = MAX_BODY + 2_048
"""The most bytes that an answer may have: it may hold a whole message, and itself be one."""
LEAST_PREFIX = 8
RECIPE_PATTERN = f"[0-9a-f]{{{LEAST_PREFIX},64}}"

NOT_FOUND = "not-found"
AMBIGUOUS = "ambiguous"
BAD_QUERY = "bad-query"
BEHIND = "behind"
UNAVAILABLE = "unavailable"
QUERY_ERRORS: dict[str, str] = {
    NOT_FOUND: "There is nothing of that name.",
    AMBIGUOUS: "More than one thing goes by that name.",
    BAD_QUERY: "The query is not of its form.",
    BEHIND: "The tracker has not folded as far as was asked for.",
    UNAVAILABLE: "The tracker cannot answer now: it has not caught up, or it faulted.",
}
"""Every code of an error, and what it means."""

RecipePrefix = Annotated[
    str,
    Meta(
        min_length=LEAST_PREFIX,
        max_length=64,
        extra_json_schema={"pattern": f"^{RECIPE_PATTERN}$"},
    ),
]
_RECIPE = re.compile(RECIPE_PATTERN)


def _check_key(text: str) -> None:
    if not is_key(text):
        raise ValueError("expected an NKey user public key (U…)")


def _check_recipe(text: str) -> None:
    if _RECIPE.fullmatch(text) is None:
        raise ValueError(
            f"recipe: expected a recipe key or {LEAST_PREFIX} hex digits or more of it"
        )


class QueryError(Struct, frozen=True):
    """Why there is no answer: a key of `QUERY_ERRORS`, and a text for people."""

    code: ShortText
    detail: LongText


class Query(
    Struct,
    Generic[AnswerType],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
):
    """A question, by the type of its answer. `min_sequence`: not before so much is folded."""

    min_sequence: Count = 0

    def is_answered_by(self, answer: AnswerType) -> bool:  # noqa: ARG002 - each query looks at its own
        """Whether `answer` is one to this question, and not to another of its kind.

        Nothing is, unless the query says what.
        """
        return False


class ClaimQuery(Query[ClaimAnswer], frozen=True, kw_only=True):
    """Ask for the newest registration of a node's shard."""

    node: PublicKey
    shard_id: ShardId

    def __post_init__(self) -> None:
        _check_key(self.node)
        if not is_shard_id(self.shard_id):
            raise ValueError(f"shard_id: expected {SHARD_ID_PATTERN}")

    def is_answered_by(self, answer: ClaimAnswer) -> bool:
        """Whether it is of this shard."""
        return (answer.node, answer.shard_id) == (self.node, self.shard_id)


class NodeQuery(Query[NodeAnswer], frozen=True, kw_only=True):
    """Ask who a key is."""

    node: PublicKey

    def __post_init__(self) -> None:
        _check_key(self.node)

    def is_answered_by(self, answer: NodeAnswer) -> bool:
        """Whether it is of this key."""
        return answer.node == self.node


class HeadQuery(Query[HeadAnswer], frozen=True, kw_only=True):
    """Ask for the message that the next event of a node must follow."""

    node: PublicKey

    def __post_init__(self) -> None:
        _check_key(self.node)

    def is_answered_by(self, answer: HeadAnswer) -> bool:
        """Whether it is of this node."""
        return answer.node == self.node


class PlanQuery(Query[PlanAnswer], frozen=True, kw_only=True):
    """Ask for a route over a recipe that names no node of `exclude`.

    `recipe` is its key, or 8 hex digits or more of it.
    """

    exclude: tuple[PublicKey, ...] = ()
    purpose: Purpose
    recipe: RecipePrefix

    def __post_init__(self) -> None:
        _check_recipe(self.recipe)
        for node in self.exclude:
            _check_key(node)

    def is_answered_by(self, answer: PlanAnswer) -> bool:
        """Whether it is for this purpose, over a recipe of this name, and without those excluded."""
        return (
            answer.purpose == self.purpose
            and answer.recipe_key.startswith(self.recipe)
            and not {hop.node for hop in answer.hops}.intersection(self.exclude)
        )


class RecipeQuery(Query[RecipeAnswer], frozen=True, kw_only=True):
    """Ask for a recipe by its key, or by 8 hex digits or more of it."""

    recipe: RecipePrefix

    def __post_init__(self) -> None:
        _check_recipe(self.recipe)

    def is_answered_by(self, answer: RecipeAnswer) -> bool:
        """Whether it is of a recipe of this name."""
        return answer.recipe_key.startswith(self.recipe)


class ClockQuery(Query[ClockAnswer], frozen=True, kw_only=True):
    """Ask for the time of the broker."""

    def is_answered_by(self, answer: ClockAnswer) -> bool:  # noqa: ARG002 - there is one time
        """Any time is one."""
        return True


QUERIES: dict[str, type[Query[Any]]] = {
    CLAIM: ClaimQuery,
    NODE: NodeQuery,
    HEAD: HeadQuery,
    PLAN: PlanQuery,
    RECIPE: RecipeQuery,
    CLOCK: ClockQuery,
}
ANSWERS: dict[str, type[Struct]] = {
    CLAIM: ClaimAnswer,
    NODE: NodeAnswer,
    HEAD: HeadAnswer,
    PLAN: PlanAnswer,
    RECIPE: RecipeAnswer,
    CLOCK: ClockAnswer,
}
QUERY_NAMES = tuple(QUERIES)


class Reply(Struct, Generic[AnswerType], frozen=True, kw_only=True, omit_defaults=True):
    """What comes back: as of which sequence, and either the answer or an error.

    An error that was found before anything was looked up is of no sequence, which 0 says.
    """

    sequence: Count
    answer: AnswerType | None = None
    error: QueryError | None = None


_QUERY_DECODERS: dict[str, msgspec.json.Decoder[Query[Any]]] = {
    name: msgspec.json.Decoder(query) for name, query in QUERIES.items()
}
_REPLY_DECODERS: dict[type[Query[Any]], msgspec.json.Decoder[Any]] = {
    QUERIES[name]: msgspec.json.Decoder(Reply[answer])  # type: ignore[valid-type]
    for name, answer in ANSWERS.items()
}
_NAMES = {query: name for name, query in QUERIES.items()}
encode = msgspec.json.Encoder(order="sorted").encode
"""Writes a query or a reply."""


def name_of(query: Query[Any]) -> str:
    """What `query` is called: the last token of the subject that it goes to."""
    return _NAMES[type(query)]


def decode_query(name: str, body: bytes) -> Query[Any] | QueryError:
    """Read a query called `name`, or say what is wrong with it. Never raises for any `body`."""
    if len(body) > MAX_QUERY:
        return QueryError(BAD_QUERY, f"more than {MAX_QUERY:,} bytes")
    try:
        return _QUERY_DECODERS[name].decode(body or b"{}")
    except msgspec.MsgspecError as error:
        return QueryError(BAD_QUERY, fitted(str(error)))  # it quotes what came


def decode_reply(query: Query[AnswerType], body: bytes) -> Reply[AnswerType] | str:
    """Read what came back for `query`, or say why that is no reply to it. Never raises."""
    if len(body) > MAX_ANSWER:
        return f"more than {MAX_ANSWER:,} bytes"
    try:
        reply: Reply[AnswerType] = _REPLY_DECODERS[type(query)].decode(body)
    except msgspec.MsgspecError as error:
        return fitted(str(error))
    except RecursionError:
        return "it nests too deep"
    if (reply.answer is None) == (reply.error is None):
        return "expected either an answer or an error"
    if reply.answer is not None and not query.is_answered_by(reply.answer):
        return "it answers another question"
    return reply
