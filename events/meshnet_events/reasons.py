"""Every code that an outcome, a claim or a refused route can carry, spelled once.

A code is for programs and never changes; the detail text beside it is for people and may. Codes of
identity mismatches live with the two identity implementations, those of admission in `admission`.
`MEANING` says each in one sentence: documentation and error messages are made from it.
"""

from msgspec import Struct


class Refusal(Struct, frozen=True):
    """A refusal is a value: its code, and a text that says what was found and expected."""

    code: str
    detail: str


# The gate, in the order of its steps.
OVERSIZE = "oversize"
NOT_JSON = "not-json"
BAD_ENVELOPE = "bad-envelope"
BAD_SIGNATURE = "bad-signature"
NOT_CANONICAL = "not-canonical"
WRONG_REALM = "wrong-realm"
WRONG_SUBJECT = "wrong-subject"
REPLAYED = "replayed"
BROKEN_CHAIN = "broken-chain"
UNKNOWN_TYPE = "unknown-type"
BAD_SHAPE = "bad-shape"

# The fold.
NOT_OPERATOR = "not-operator"
NOT_ENROLLED = "not-enrolled"
SUSPENDED = "suspended"
OUT_OF_PLACE = "out-of-place"
BAD_OPERATORS = "bad-operators"
BAD_POLICY = "bad-policy"
BAD_CHAIN = "bad-chain"
UNKNOWN_NODE = "unknown-node"
UNKNOWN_PEER = "unknown-peer"
UNKNOWN_RECIPE = "unknown-recipe"
STALE_BOOT = "stale-boot"
BAD_IDENTITY = "bad-identity"
REVOKED = "revoked"
CAPABILITY = "capability:"
EVIDENCE_SYNTHETIC = "evidence:synthetic"
EVIDENCE_TOO_FEW_NODES = "evidence:too-few-nodes"
EVIDENCE_DUPLICATE_NODE = "evidence:duplicate-node"
EVIDENCE_NO_TOKENS = "evidence:no-tokens"
EVIDENCE_COVERAGE = "evidence:coverage"
EVIDENCE_LAYER_COUNT = "evidence:layer-count"
EVIDENCE_STALE = "evidence:stale"
EVIDENCE_HOP = "evidence:hop"
EVIDENCE_DIGESTS = "evidence:digests"
EVIDENCE_EQUIVOCATION = "evidence:equivocation"
EVIDENCE_POLICY_NODES = "evidence:policy-nodes"
EVIDENCE_POLICY_HOSTS = "evidence:policy-hosts"
EVIDENCE_POLICY_GROUPS = "evidence:policy-groups"

# Why a claim is not eligible (SUSPENDED, NOT_ENROLLED and REVOKED too).
REFUSED = "refused"
WITHDRAWN = "withdrawn"
SUPERSEDED = "superseded"
CONFLICT = "conflict"
SYNTHETIC = "synthetic"
DARK = "dark"
NOT_LIVE = "not-live"

# Why there is no route (UNKNOWN_RECIPE and REVOKED too).
NOT_CERTIFIED = "not-certified"
RANGE = "range"
SEAM = "seam"
NODES = "nodes"
HOSTS = "hosts"
GROUPS = "groups"
HANDSHAKE = "handshake"

MEANING: dict[str, str] = {
    OVERSIZE: "The body is larger than 61,440 bytes.",
    NOT_JSON: "The body is not UTF-8 JSON, nests deeper than 32, or holds a float, a lone "
    "surrogate or an integer beyond ±(2^53-1).",
    BAD_ENVELOPE: 'The body is not {"event":E,"sig":"S"}, or E lacks, adds or mistypes a member.',
    BAD_SIGNATURE: "The issuer's key did not sign these bytes.",
    NOT_CANONICAL: "E is not in canonical form: key order, white space, escapes or a key twice.",
    WRONG_REALM: "The event speaks of another realm.",
    WRONG_SUBJECT: "Issuer, source and the subject it was stored under do not agree.",
    REPLAYED: "The issuer's chain is already past this event.",
    BROKEN_CHAIN: "The event is not its issuer's next one.",
    UNKNOWN_TYPE: "No fact of this type is known here.",
    BAD_SHAPE: "The data is not what the fact's type asks for.",
    NOT_OPERATOR: "Only an operator may state this fact.",
    NOT_ENROLLED: "The node is not enrolled, and the policy requires it.",
    SUSPENDED: "An operator suspended the node.",
    OUT_OF_PLACE: "This fact may only stand at another place of the log.",
    BAD_OPERATORS: "The list of operators is empty, repeats a key or holds something else.",
    BAD_POLICY: "The policy asks for less than a policy may ask for.",
    BAD_CHAIN: "The chain cannot restart at or below where it is.",
    UNKNOWN_NODE: "No such node is known.",
    UNKNOWN_PEER: "The peer is not a known node.",
    UNKNOWN_RECIPE: "No admitted claim has made this recipe known.",
    STALE_BOOT: "The boot is not the node's current one.",
    BAD_IDENTITY: "The identity block has a fault; the detail names the field.",
    REVOKED: "An operator revoked the recipe.",
    EVIDENCE_SYNTHETIC: "A synthetic forward proves nothing.",
    EVIDENCE_TOO_FEW_NODES: "A distributed forward needs two distinct nodes.",
    EVIDENCE_DUPLICATE_NODE: "A node is counted twice.",
    EVIDENCE_NO_TOKENS: "No token was generated.",
    EVIDENCE_COVERAGE: "The hops do not tile the whole model exactly and in order.",
    EVIDENCE_LAYER_COUNT: "The evidence speaks of another number of layers than the artifact has.",
    EVIDENCE_STALE: "The forward is older than the policy allows, or lies in the future.",
    EVIDENCE_HOP: "A hop is not a live, admitted, genuine claim that holds its range.",
    EVIDENCE_DIGESTS: "The digests of the hops do not chain from input to output.",
    EVIDENCE_EQUIVOCATION: "This node attested other evidence for the same session and epoch.",
    EVIDENCE_POLICY_NODES: "Fewer distinct nodes took part than the policy asks for.",
    EVIDENCE_POLICY_HOSTS: "Fewer distinct hosts took part than the policy asks for.",
    EVIDENCE_POLICY_GROUPS: "Fewer distinct groups took part than the policy asks for.",
    REFUSED: "The registration was refused.",
    WITHDRAWN: "The node withdrew the shard.",
    SUPERSEDED: "A newer registration or boot took its place.",
    CONFLICT: "Two hosts use this node's key; an operator must reinstate it.",
    SYNTHETIC: "The backend is synthetic: it computes no model.",
    DARK: "No distributed forward has certified the recipe yet.",
    NOT_LIVE: "No presence named this boot and shard within 15 seconds.",
    NOT_CERTIFIED: "Only a certified recipe serves.",
    RANGE: "Some layers are held by no usable claim.",
    SEAM: "The only routes cut the model where no forward has been proven.",
    NODES: "No route names enough distinct nodes.",
    HOSTS: "No route spans enough distinct hosts.",
    GROUPS: "No route spans enough distinct groups.",
    HANDSHAKE: "The only routes join neighbours that refused one another.",
}
