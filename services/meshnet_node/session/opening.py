"""A `SessionOpen` from the wire, read once: past here it is typed, of its form, and proven.

`read_opening` looks at the forms of all members, the realm, and the caller's proof, in that order:
nothing a stranger sends costs more than a signature check. Whether the session may go on (boots,
epochs, fingerprints, ranges, what the tracker knows) is for whoever holds that knowledge; the checks
of ranges are here too, since they need nothing but the opening and the shard.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from meshnet_events.facts import Hop
from meshnet_events.forms import MAX_INTEGER, is_endpoint, is_key, is_shard_id, is_uuid
from meshnet_events.session import NONCE_BYTES, Pair, SessionTerms
from meshnet_node.handshake import presented_in
from meshnet_node.session.failure import SessionFailed, violation
from meshnet_proto import shard_runtime_pb2 as pb

Purpose = Literal["serve", "certify", "handshake"]

MAX_HOPS = 64
"""Hops of one route; a longer one would be slower than any machine."""
_MAX_SHARD_ID = 32
_MAX_ENDPOINT = 1_024

PURPOSES: dict[Purpose, "pb.SessionPurpose.ValueType"] = {
    "serve": pb.SESSION_PURPOSE_SERVE,
    "certify": pb.SESSION_PURPOSE_CERTIFY,
    "handshake": pb.SESSION_PURPOSE_HANDSHAKE,
}
_PURPOSE_OF = {number: purpose for purpose, number in PURPOSES.items()}


class RouteHop(Struct, frozen=True):
    """One hop of a route: whose shard computes layers `[start, end)`, and where it is reached."""

    node: str
    boot_id: str
    shard_id: str
    endpoint: str
    start: int
    end: int

    def at(self, endpoint: str) -> "RouteHop":
        """The same hop, reached at `endpoint`."""
        return msgspec.structs.replace(self, endpoint=endpoint)

    def to_fact(self) -> Hop:
        """The hop as evidence names it."""
        return Hop(
            boot_id=self.boot_id,
            end=self.end,
            node=self.node,
            shard_id=self.shard_id,
            start=self.start,
        )

    def to_proto(self) -> pb.NextHop:
        """The hop as a `SessionOpen` names it."""
        return pb.NextHop(
            node=self.node,
            boot_id=self.boot_id,
            shard_id=self.shard_id,
            endpoint=self.endpoint,
            range=pb.ShardRange(start=self.start, end=self.end),
        )


class Opening(Struct, frozen=True):
    """What a caller, who proved its key, asks of one hop.

    `presented` is the caller's fingerprint as it came: it is for `check_handshake` alone.
    """

    purpose: Purpose
    terms: SessionTerms
    hop: int
    shard_id: str
    start: int
    end: int
    after: tuple[RouteHop, ...]
    presented: pb.Fingerprint

    @property
    def session(self) -> tuple[str, int]:
        """Which session this is: its id and epoch."""
        return self.terms.route_session_id, self.terms.route_epoch

    @property
    def is_between_neighbours(self) -> bool:
        """Whether the caller is a node that calls its neighbour, and no driver."""
        return self.hop > 0 or self.purpose == "handshake"


def read_opening(frame: pb.SessionOpen, *, realm: str, key: str, nonce: bytes) -> Opening:
    """Read and prove what came in answer to our challenge (`key`, `nonce`).

    Raises SessionFailed: `PROTOCOL_VIOLATION` names the member, `BAD_PROOF` says whose.
    """
    fault = _fault_of(frame)
    if fault is not None:
        raise violation(f"open.{fault}")
    if frame.realm != realm:
        raise violation("open.realm: it is another realm's, expected that of this node")
    terms = SessionTerms(
        boots=Pair(caller=frame.caller_boot_id, responder=frame.responder_boot_id),
        keys=Pair(caller=frame.key, responder=key),
        nonces=Pair(caller=frame.nonce.hex(), responder=nonce.hex()),
        realm=realm,
        route_epoch=frame.route_epoch,
        route_session_id=frame.route_session_id,
    )
    if not terms.is_proven("caller", presented_in(frame.fingerprint), frame.proof):
        raise SessionFailed(
            pb.ERROR_CODE_BAD_PROOF,
            f"open.proof: {frame.key} did not sign this session's terms; expected a signature over "
            "both nonces, keys and boots, realm, session, epoch and its own fingerprint",
        )
    return Opening(
        purpose=_PURPOSE_OF[frame.purpose],
        terms=terms,
        hop=frame.hop,
        shard_id=frame.shard_id,
        start=frame.range.start,
        end=frame.range.end,
        after=tuple(
            RouteHop(
                node=hop.node,
                boot_id=hop.boot_id,
                shard_id=hop.shard_id,
                endpoint=hop.endpoint,
                start=hop.range.start,
                end=hop.range.end,
            )
            for hop in frame.hops_after
        ),
        presented=frame.fingerprint,
    )


def range_fault(opening: Opening, *, start: int, end: int, layer_count: int) -> str | None:
    """Why layers as asked cannot be computed by a shard of `[start, end)`, or None."""
    asked = f"[{opening.start}, {opening.end})"
    if not start <= opening.start < opening.end <= end:
        return f"layers {asked} were asked for, [{start}, {end}) are held here"
    if opening.purpose == "handshake":
        return None
    if (opening.hop == 0) != (opening.start == 0):
        return f"hop {opening.hop} was asked to start at layer {opening.start}"
    reached = opening.end
    for hop in opening.after:
        if hop.start != reached:
            return f"layers [{hop.start}, {hop.end}) do not join the hop that ends at {reached}"
        reached = hop.end
    if reached != layer_count:
        return f"the hops after end at layer {reached}, the model at {layer_count}"
    return None


def _fault_of(frame: pb.SessionOpen) -> str | None:
    """The first member that is not of its form, with what was expected."""
    if frame.purpose not in _PURPOSE_OF:
        return "purpose: expected one that is known"
    if not 1 <= len(frame.route_session_id) <= 128:
        return "route_session_id: expected 1 to 128 characters"
    if frame.route_epoch > MAX_INTEGER:
        return f"route_epoch: expected at most {MAX_INTEGER}"
    if not is_key(frame.key):
        return "key: expected an NKey user public key (U…)"
    if len(frame.nonce) != NONCE_BYTES:
        return f"nonce: expected {NONCE_BYTES} bytes"
    for name in ("caller_boot_id", "responder_boot_id"):
        if not is_uuid(getattr(frame, name)):
            return f"{name}: expected a UUID"
    if not _is_shard_id(frame.shard_id):
        return "shard_id: expected [a-z0-9-]{1,32}"
    if frame.range.start >= frame.range.end:
        return "range: expected start below end"
    if len(frame.hops_after) + frame.hop + 1 > MAX_HOPS:
        return f"hops_after: expected a route of at most {MAX_HOPS} hops"
    if frame.purpose == pb.SESSION_PURPOSE_HANDSHAKE and frame.hops_after:
        return "hops_after: expected none where nothing is computed"
    for index, hop in enumerate(frame.hops_after):
        fault = _hop_fault(hop)
        if fault is not None:
            return f"hops_after[{index}].{fault}"
    return None


def _hop_fault(hop: pb.NextHop) -> str | None:
    if not is_key(hop.node):
        return "node: expected an NKey user public key (U…)"
    if not is_uuid(hop.boot_id):
        return "boot_id: expected a UUID"
    if not _is_shard_id(hop.shard_id):
        return "shard_id: expected [a-z0-9-]{1,32}"
    if len(hop.endpoint) > _MAX_ENDPOINT or not is_endpoint(hop.endpoint):
        return "endpoint: expected grpc://host:port or grpcs://host:port"
    if hop.range.start >= hop.range.end:
        return "range: expected start below end"
    return None


def _is_shard_id(text: str) -> bool:
    # the length first: a pattern's answers are remembered, and a stranger's text may be of any length
    return len(text) <= _MAX_SHARD_ID and is_shard_id(text)
