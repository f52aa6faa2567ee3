"""Results of handshakes: what is published of them, and whom to ask again.

Two neighbours compare fingerprints when one opens a session at the other, and both publish what came
of it, as `handshake.completed`. The same result for the same peer, boots and fingerprint is published
once: routes are opened all the time, and saying it again would change nothing.

A refusal bars the pair from every route while it is the newest result, so a mistake that was mended
(a tracker that lagged, a recipe corrected) would bar it for good. Whoever refused or was refused
therefore tries again, with a session in which nothing is computed: after a minute, then ever later,
up to an hour (`Results.due`).

No clock is read here: whoever asks says what time it is, in seconds of a monotonic clock.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from meshnet_events.facts import (
    Fingerprint,
    HandshakeCompleted,
    Mismatch,
    PresentedFingerprint,
)
from meshnet_events.session import Presented, SessionTerms
from meshnet_node.recipe_identity import (
    CompatibilityFingerprint,
    RouteMismatch,
)
from meshnet_proto import shard_runtime_pb2 as pb

FIRST_RETRY_S = 60.0
LONGEST_RETRY_S = 3600.0
MAX_REMEMBERED = 4_096
"""Results kept. Past it the oldest is forgotten, and would be published once more."""

_MAX_TEXT = 1024
_MAX_PRESENTED = 128

Role = Literal["initiator", "responder"]


class Peer(Struct, frozen=True):
    """A neighbour in one boot, as met by one of our shards (its digests)."""

    node: str
    boot_id: str
    our_boot_id: str
    model_artifact_digest: str
    runtime_recipe_digest: str


class Refused(Struct, frozen=True):
    """A pair that refused, and which of our shards met it: to be tried again."""

    peer: Peer
    shard_id: str


class _Result(Struct):
    fact: HandshakeCompleted
    shard_id: str
    wait_s: float
    due_s: float
    before: "_Result | None" = None
    """What was the newest until this; kept until this is known to be published."""


def presented_in(fingerprint: pb.Fingerprint) -> Presented:
    """A fingerprint on the wire as a proof has it."""
    return Presented(
        catalogue_version=fingerprint.catalogue_version,
        model_artifact_digest=fingerprint.model_artifact_digest,
        recipe_id=fingerprint.recipe_id,
        recipe_version=fingerprint.recipe_version,
        runtime_recipe_digest=fingerprint.runtime_recipe_digest,
    )


def result(
    terms: SessionTerms,
    role: Role,
    ours: CompatibilityFingerprint,
    presented: pb.Fingerprint,
    mismatches: Sequence[RouteMismatch],
) -> HandshakeCompleted:
    """The fact that one side publishes; what the peer presented may be anything."""
    is_initiator = role == "initiator"
    boots, keys = terms.boots, terms.keys
    return HandshakeCompleted(
        accepted=not mismatches,
        boot_id=boots.caller if is_initiator else boots.responder,
        local=Fingerprint(
            catalogue_version=ours.catalogue_version,
            model_artifact_digest=ours.model_artifact_digest,
            recipe_id=ours.recipe_id,
            recipe_version=ours.recipe_version,
            runtime_recipe_digest=ours.runtime_recipe_digest,
        ),
        mismatches=tuple(
            Mismatch(
                detail=mismatch.detail[:_MAX_TEXT],
                reason=mismatch.reason,
                shard_index=mismatch.shard_index,
            )
            for mismatch in mismatches
        ),
        peer=keys.responder if is_initiator else keys.caller,
        peer_boot_id=boots.responder if is_initiator else boots.caller,
        presented=PresentedFingerprint(
            catalogue_version=presented.catalogue_version[:_MAX_PRESENTED],
            model_artifact_digest=presented.model_artifact_digest[:_MAX_PRESENTED],
            recipe_id=presented.recipe_id[:_MAX_PRESENTED],
            recipe_version=presented.recipe_version[:_MAX_PRESENTED],
            runtime_recipe_digest=presented.runtime_recipe_digest[:_MAX_PRESENTED],
        ),
        role=role,
        route_epoch=terms.route_epoch,
        route_session_id=terms.route_session_id,
    )


class Results:
    """The newest result for every peer: what is news, and what is to be tried again."""

    def __init__(self) -> None:
        self._newest: dict[Peer, _Result] = {}

    def take(self, fact: HandshakeCompleted, shard_id: str, *, now_s: float) -> bool:
        """Take a result in; whether it is news, and so to be published."""
        peer = Peer(
            fact.peer,
            fact.peer_boot_id,
            fact.boot_id,
            fact.local.model_artifact_digest,
            fact.local.runtime_recipe_digest,
        )
        before = self._newest.pop(peer, None)
        is_news = before is None or _verdict(before.fact) != _verdict(fact)
        if before is None or is_news:
            if before is not None:
                before.before = None
            self._newest[peer] = _Result(
                fact, shard_id, FIRST_RETRY_S, now_s + FIRST_RETRY_S, before
            )
        else:  # as it was: what is kept is what was published, and `due` has put it off
            self._newest[peer] = before
        if len(self._newest) > MAX_REMEMBERED:
            del self._newest[next(iter(self._newest))]
        return is_news

    def forget(self, fact: HandshakeCompleted) -> None:
        """Take back a result that could not be published: the one before it is the newest again."""
        for peer, kept in self._newest.items():
            if kept.fact is fact:
                if kept.before is None:
                    del self._newest[peer]
                else:
                    self._newest[peer] = kept.before
                return

    def due(self, *, now_s: float) -> tuple[Refused, ...]:
        """The refusals that are to be tried again now; each is then put off as if it had been."""
        found = []
        for peer, kept in self._newest.items():
            if not kept.fact.accepted and kept.due_s <= now_s:
                kept.wait_s = _longer(kept.wait_s)
                kept.due_s = now_s + kept.wait_s
                found.append(Refused(peer, kept.shard_id))
        return tuple(found)


def _longer(wait_s: float) -> float:
    return min(2 * wait_s, LONGEST_RETRY_S)


def _verdict(fact: HandshakeCompleted) -> tuple[object, ...]:
    """What a reader learns from a result: whether the two match, and where not.

    What exactly was presented is no part of it: a peer that presents other garbage each time would
    make us write to the log each time.
    """
    return (fact.accepted, tuple(mismatch.reason for mismatch in fact.mismatches))
