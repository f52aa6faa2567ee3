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
| `plan` | `PlanQuery` | `PlanAnswer`: a route with its hops, or every obstacle |
| `recipe` | `RecipeQuery` | `RecipeAnswer`: a recipe by its key, or by 8 characters or more of it |
| `clock` | `ClockQuery` | `ClockAnswer`: the broker's time, as the stream's leader tells it |

With `min_sequence` a tracker answers once it has folded that far, or says `behind` after a bounded
wait. Members that are not known are refused in queries and ignored in answers, so that a tracker may
learn to say more.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from meshnet_events.facts import Fingerprint, Host
from meshnet_events.forms import Count, Digest, PublicKey, ShardId, Uuid

CLAIM = "claim"
NODE = "node"
PLAN = "plan"
RECIPE = "recipe"
CLOCK = "clock"
QUERY_NAMES = (CLAIM, NODE, PLAN, RECIPE, CLOCK)

MAX_QUERY = 16_384

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


class Query(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A question. `min_sequence`: not before this much of the log is folded."""

    min_sequence: Count = 0


class ClaimQuery(Query, frozen=True, kw_only=True):
    """Ask for the newest registration of a node's shard."""

    node: PublicKey
    shard_id: ShardId


class NodeQuery(Query, frozen=True, kw_only=True):
    """Ask who a key is."""

    node: PublicKey


class PlanQuery(Query, frozen=True, kw_only=True):
    """Ask for a route over a recipe that names no node of `exclude`.

    `recipe` is its key, or 8 characters or more of it.
    """

    exclude: tuple[PublicKey, ...] = ()
    purpose: Purpose
    recipe: str


class RecipeQuery(Query, frozen=True, kw_only=True):
    """Ask for a recipe by its key, or by 8 characters or more of it."""

    recipe: str


class ClockQuery(Query, frozen=True, kw_only=True):
    """Ask for the time of the broker."""


class QueryError(Struct, frozen=True):
    """Why there is no answer: a key of `QUERY_ERRORS`, and a text for people."""

    code: str
    detail: str


class ClaimAnswer(Struct, frozen=True, kw_only=True):
    """The newest registration of a shard, and the registry's verdict on it.

    `recipe_key`, `fingerprint` and the range are None when the identity had a fault. `reasons` are
    those of eligibility; presence is among them (`not-live`) where the tracker listens for it, which
    `presence` tells.
    """

    boot_id: Uuid
    device: str
    endpoint: str
    eligible_to_certify: bool
    eligible_to_serve: bool
    end: int | None
    fingerprint: Fingerprint | None
    host: Host
    node: PublicKey
    presence: bool
    reasons: tuple[str, ...]
    recipe_key: Digest | None
    recipe_status: str
    refusal: str | None
    refusal_detail: str
    registered_sequence: Count
    shard_id: ShardId
    start: int | None
    status: str


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """Who a key is in the realm. `status` is `unknown` for one that nobody has heard of.

    `may_speak` is whether its facts are heard at all under the policy in force. The head is that of
    its chain: what its next event must follow (0 and 64 zeros before the first).
    """

    boot_id: Uuid | None
    group: str
    head_digest: Digest
    head_issuerseq: Count
    label: str
    may_speak: bool
    node: PublicKey
    status: str


class PlannedHop(Struct, frozen=True, kw_only=True):
    """One hop of a route: a claim, and the layers `[start, end)` of it that are to be computed."""

    boot_id: Uuid
    end: int
    endpoint: str
    label: str
    node: PublicKey
    shard_id: ShardId
    start: int


class Obstacle(Struct, frozen=True):
    """What is in the way of a route: a code, and a text for people."""

    code: str
    detail: str


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """A route (`hops`), or why there is none (`obstacles`). One of the two is empty."""

    fingerprint: Fingerprint | None
    hops: tuple[PlannedHop, ...]
    layer_count: int
    obstacles: tuple[Obstacle, ...]
    purpose: Purpose
    recipe_key: Digest


class RecipeAnswer(Struct, frozen=True, kw_only=True):
    """A recipe and the sentence that explains its status."""

    certified_time_ms: int | None
    fingerprint: Fingerprint
    layer_count: int
    proven_seams: tuple[int, ...]
    recipe_key: Digest
    status: str
    why: str


class ClockAnswer(Struct, frozen=True):
    """The broker's time, in ns since the epoch, at the moment it was asked."""

    time_ns: int


QUERIES: dict[str, type[Query]] = {
    CLAIM: ClaimQuery,
    NODE: NodeQuery,
    PLAN: PlanQuery,
    RECIPE: RecipeQuery,
    CLOCK: ClockQuery,
}
ANSWERS: dict[str, type[Struct]] = {
    CLAIM: ClaimAnswer,
    NODE: NodeAnswer,
    PLAN: PlanAnswer,
    RECIPE: RecipeAnswer,
    CLOCK: ClockAnswer,
}


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What comes back: as of which sequence, and the answer or an error. Its one of two forms."""

    sequence: Count
    answer: msgspec.Raw | None = None
    error: QueryError | None = None
