"""What a peer signs to prove, in one session between two shards, that it holds its key.

Each side gives a nonce and signs, with its event key, the canonical JSON of

    {"boots":{"caller":"3769e4f9-…","responder":"b1c2d3e4-…"},
     "fingerprint":{"catalogue_version":"1","model_artifact_digest":"<64 hex>","recipe_id":"dense",
                    "recipe_version":"1","runtime_recipe_digest":"<64 hex>"},
     "keys":{"caller":"UBXW…P4T2","responder":"UCGB…Q7YA"},
     "nonces":{"caller":"<64 hex>","responder":"<64 hex>"},
     "realm":"lab","route_epoch":0,"route_session_id":"0192f8a0-…","signer":"caller"}

(white space added) under DSSE with the payload type `application/vnd.meshnet.session.v1+json`, so
that no proof is ever an event. `signer` says which of the two signed: neither can hand the other's
proof back as its own. `fingerprint` is what the signer presents, as the wire has it, whatever that is:
so what a peer is reported to have presented, it did present. Both nonces are in it, so a proof is good
for one session; both keys and boots, so it cannot be shown to anyone else.

A proof tells who opened a session. It does not protect what follows: that is the transport's (mTLS).
"""

from typing import Literal

from msgspec import Struct

from meshnet_events.envelope import SESSION_PAYLOAD_TYPE, canonical, pre_authentication
from meshnet_events.keys import EventKey, decode_public, signature_is_valid

NONCE_BYTES = 32
PROOF_BYTES = 64

Side = Literal["caller", "responder"]


class Pair(Struct, frozen=True):
    """A text of each side."""

    caller: str
    responder: str


class Presented(Struct, frozen=True):
    """The fingerprint that the signer presents: five texts, which may be anything."""

    catalogue_version: str
    model_artifact_digest: str
    recipe_id: str
    recipe_version: str
    runtime_recipe_digest: str


class SessionTerms(Struct, frozen=True):
    """What both sides of a session sign: who they are, and which session it is.

    `keys` are NKey public keys, `nonces` hex of `NONCE_BYTES` each, `boots` UUIDs.
    """

    boots: Pair
    keys: Pair
    nonces: Pair
    realm: str
    route_epoch: int
    route_session_id: str

    def prove(self, key: EventKey, side: Side, presented: Presented) -> bytes:
        """The 64-byte proof of `side`, which holds `key` and presents this fingerprint."""
        return key.sign(self._signed_bytes(side, presented))

    def is_proven(self, side: Side, presented: Presented, proof: bytes) -> bool:
        """Whether `proof` is that of `side`, presenting this fingerprint. No input raises."""
        public = decode_public(getattr(self.keys, side))
        if public is None or len(proof) != PROOF_BYTES:
            return False
        try:
            signed = self._signed_bytes(side, presented)
        except UnicodeEncodeError:  # a lone surrogate has no bytes to sign
            return False
        return signature_is_valid(public, signed, proof)

    def _signed_bytes(self, side: Side, presented: Presented) -> bytes:
        terms = {
            "boots": self.boots,
            "fingerprint": presented,
            "keys": self.keys,
            "nonces": self.nonces,
            "realm": self.realm,
            "route_epoch": self.route_epoch,
            "route_session_id": self.route_session_id,
            "signer": side,
        }
        return pre_authentication(SESSION_PAYLOAD_TYPE, canonical(terms))
