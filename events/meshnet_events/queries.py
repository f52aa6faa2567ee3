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
wait. Members that are not known are refused in queries and ignored in answers, so that a tracker may
learn to say more; the parts that come from facts (`fingerprint`, `host`) have exactly their members.

Both sides read hostile bytes: `decode_query` and `decode_reply` never raise. What is about another
node or recipe than was asked about is no answer, and neither is a route that leaves out layers.

Left out: how long either side waits, and which tracker answers (`meshnet_bus.service`, `.asker`).
"""

import re
from itertools import pairwise
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from meshnet_events.envelope import MAX_BODY
from meshnet_events.facts import Fingerprint, Host, recipe_key
from meshnet_events.forms import (
    SHARD_ID_PATTERN,
    Count,
    Digest,
    Endpoint,
    Integer,
    JsonObject,
    PublicKey,
    ShardId,
    ShortText,
    Text,
    Uuid,
    is_endpoint,
    is_hex,
    is_key,
    is_object,
    is_shard_id,
    is_uuid,
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
MAX_SHARDS = 256
MAX_REASONS = 32
MAX_LONG_TEXT = 4_096
MAX_OBSTACLES = 64
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

Purpose = Literal["serve", "certify"]
LongText = Annotated[str, Meta(max_length=MAX_LONG_TEXT)]
"""A text that may list nodes, layers or seams."""
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


def _check_form(is_right: bool, member: str) -> None:  # noqa: FBT001 - what was checked, then where
    if not is_right:
        raise ValueError(f"{member}: not of its form")


def _check_fingerprint(fingerprint: Fingerprint | None, key: str | None) -> None:
    """Raise ValueError unless `key` is the recipe key of `fingerprint`; where there is none, of none."""
    if fingerprint is None:
        _check_form(key is None, "fingerprint")
        return
    artifact, recipe = fingerprint.model_artifact_digest, fingerprint.runtime_recipe_digest
    _check_form(is_hex(artifact + recipe), "fingerprint")
    if key != recipe_key(artifact, recipe):
        raise ValueError("recipe_key: does not follow from the fingerprint")


class QueryError(Struct, frozen=True):
    """Why there is no answer: a key of `QUERY_ERRORS`, and a text for people."""

    code: ShortText
    detail: LongText


class ClaimAnswer(Struct, frozen=True, kw_only=True):
    """The newest registration of a shard, and the registry's verdict on it.

    `recipe_key`, `fingerprint` and the range are null when the identity had a fault. `reasons` are
    those of eligibility; presence is among them (`not-live`) where the tracker listens for it, which
    `presence` tells.
    """

    boot_id: Uuid
    device: Text
    endpoint: Endpoint
    eligible_to_certify: bool
    eligible_to_serve: bool
    end: Integer | None
    fingerprint: Fingerprint | None
    host: Host
    node: PublicKey
    presence: bool
    reasons: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_REASONS)]
    recipe_key: Digest | None
    recipe_status: ShortText
    refusal: ShortText | None
    refusal_detail: LongText
    registered_sequence: Count
    shard_id: ShardId
    start: Integer | None
    status: ShortText

    def __post_init__(self) -> None:
        _check_form(is_uuid(self.boot_id), "boot_id")
        _check_form(is_endpoint(self.endpoint), "endpoint")
        _check_form(is_hex(self.host.id), "host")
        _check_form(is_key(self.node), "node")
        _check_form(is_shard_id(self.shard_id), "shard_id")
        _check_fingerprint(self.fingerprint, self.recipe_key)


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """Who a key is in the realm. `status` is `unknown` for one that nobody has heard of.

    `may_speak` is whether a node's facts from it are heard at all under the policy in force. The head
    is that of its chain: what its next event must follow, and the sequence of the record that holds it
    (0, 64 zeros and 0 before the first). `shards` are the ids of its live claims in order, the first
    `MAX_SHARDS` of them.
    """

    boot_id: Uuid | None
    group: Text
    head_digest: Digest
    head_issuerseq: Count
    label: Text
    may_speak: bool
    node: PublicKey
    status: ShortText
    shards: tuple[ShardId, ...] = ()
    head_sequence: Count = 0

    def __post_init__(self) -> None:
        _check_form(all(map(is_shard_id, self.shards)), "shards")
        _check_form(self.boot_id is None or is_uuid(self.boot_id), "boot_id")
        _check_form(is_hex(self.head_digest), "head_digest")
        _check_form(is_key(self.node), "node")


class HeadAnswer(Struct, frozen=True, kw_only=True):
    """The message that the next event of `node` must follow: its body, byte for byte.

    It is the newest event of the node itself or, where an operator let its chain start anew, the
    `node.enrolled` which says so: check its signature before you follow it. Before the first there is
    none, so it is `not-found`.
    """

    body: JsonObject
    head_sequence: Count
    node: PublicKey

    def __post_init__(self) -> None:
        _check_form(is_object(self.body), "body")
        _check_form(is_key(self.node), "node")


class PlannedHop(Struct, frozen=True, kw_only=True):
    """One hop of a route: a claim, and the layers `[start, end)` of it that are to be computed."""

    boot_id: Uuid
    end: Integer
    endpoint: Endpoint
    label: Text
    node: PublicKey
    shard_id: ShardId
    start: Integer

    def __post_init__(self) -> None:
        _check_form(is_uuid(self.boot_id), "boot_id")
        _check_form(is_endpoint(self.endpoint), "endpoint")
        _check_form(is_key(self.node), "node")
        _check_form(is_shard_id(self.shard_id), "shard_id")


class Obstacle(Struct, frozen=True):
    """What is in the way of a route: a code, and a text for people."""

    code: ShortText
    detail: LongText


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """A route (`hops`), or why there is none (`obstacles`). One of the two is empty.

    The hops of a route have all layers from 0 to `layer_count`, each from where the one before ends.
    """

    fingerprint: Fingerprint
    hops: tuple[PlannedHop, ...]
    layer_count: Integer
    obstacles: Annotated[tuple[Obstacle, ...], Meta(max_length=MAX_OBSTACLES)]
    purpose: Purpose
    recipe_key: Digest

    def __post_init__(self) -> None:
        _check_form(bool(self.hops) != bool(self.obstacles), "hops, obstacles")
        _check_fingerprint(self.fingerprint, self.recipe_key)
        if self.hops and not self._is_whole():
            raise ValueError("hops: not all layers of the model, one hop after the other")

    def _is_whole(self) -> bool:
        hops = self.hops
        return (
            hops[0].start == 0
            and hops[-1].end == self.layer_count
            and all(hop.start < hop.end for hop in hops)
            and all(one.end == other.start for one, other in pairwise(hops))
        )


class RecipeAnswer(Struct, frozen=True, kw_only=True):
    """A recipe and the sentence that explains its status."""

    certified_time_ms: Integer | None
    fingerprint: Fingerprint
    layer_count: Integer
    proven_seams: tuple[Integer, ...]
    recipe_key: Digest
    status: ShortText
    why: LongText

    def __post_init__(self) -> None:
        _check_fingerprint(self.fingerprint, self.recipe_key)


class ClockAnswer(Struct, frozen=True):
    """The broker's time, in ns since the epoch, at the moment it was asked."""

    time_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)]


Answer = ClaimAnswer | NodeAnswer | HeadAnswer | PlanAnswer | RecipeAnswer | ClockAnswer
AnswerType = TypeVar("AnswerType", bound=Answer)


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


class ClaimQuery(Query[ClaimAnswer], frozen=True, kw_only=True):
    """Ask for the newest registration of a node's shard."""

    node: PublicKey
    shard_id: ShardId

    def __post_init__(self) -> None:
        _check_key(self.node)
        if not is_shard_id(self.shard_id):
            raise ValueError(f"shard_id: expected {SHARD_ID_PATTERN}")


class NodeQuery(Query[NodeAnswer], frozen=True, kw_only=True):
    """Ask who a key is."""

    node: PublicKey

    def __post_init__(self) -> None:
        _check_key(self.node)


class HeadQuery(Query[HeadAnswer], frozen=True, kw_only=True):
    """Ask for the message that the next event of a node must follow."""

    node: PublicKey

    def __post_init__(self) -> None:
        _check_key(self.node)


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


class RecipeQuery(Query[RecipeAnswer], frozen=True, kw_only=True):
    """Ask for a recipe by its key, or by 8 hex digits or more of it."""

    recipe: RecipePrefix

    def __post_init__(self) -> None:
        _check_recipe(self.recipe)


class ClockQuery(Query[ClockAnswer], frozen=True, kw_only=True):
    """Ask for the time of the broker."""


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
    """What comes back: as of which sequence, and the answer or an error. Its one of two forms.

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
        return QueryError(BAD_QUERY, str(error)[:MAX_LONG_TEXT])  # it quotes what came


def decode_reply(query: Query[AnswerType], body: bytes) -> Reply[AnswerType] | str:
    """Read what came back for `query`, or say why that is no reply to it. Never raises."""
    if len(body) > MAX_ANSWER:
        return f"more than {MAX_ANSWER:,} bytes"
    try:
        reply: Reply[AnswerType] = _REPLY_DECODERS[type(query)].decode(body)
    except msgspec.MsgspecError as error:
        return str(error)[:MAX_LONG_TEXT]
    except RecursionError:
        return "it nests too deep"
    if (reply.answer is None) == (reply.error is None):
        return "expected either an answer or an error"
    if reply.answer is not None and not _is_to(query, reply.answer):
        return "it answers another question"
    return reply


def _is_to(query: Query[Any], answer: Any) -> bool:
    """Whether `answer` is one to this very query, and not to another of its kind."""
    match query:
        case ClaimQuery():
            return (answer.node, answer.shard_id) == (query.node, query.shard_id)
        case NodeQuery() | HeadQuery():
            return bool(answer.node == query.node)
        case PlanQuery() if answer.purpose != query.purpose:
            return False
        case PlanQuery() if {hop.node for hop in answer.hops}.intersection(query.exclude):
            return False
        case PlanQuery() | RecipeQuery():
            return bool(answer.recipe_key.startswith(query.recipe))
        case _:
            return True
