"""What the gate says of one message, and how an event continues its issuer's chain."""

from binascii import a2b_base64

from msgspec import Struct

from meshnet_events.envelope import ChainHead
from meshnet_events.facts import Fact
from meshnet_events.keys import signature_is_valid
from meshnet_events.reasons import BAD_SIGNATURE, BROKEN_CHAIN, REPLAYED, Refusal

# `base64.urlsafe_b64decode` does the same at three times the cost
_STANDARD = bytes.maketrans(b"-_", b"+/")


class Event(Struct, frozen=True, gc=False):
    """An event that passed steps 1 to 6; `data` is its fact, or the reason why it holds none.

    `identity` is the identity block of a registration: a gate gives one object for equal blocks, so
    that whoever looks it up need not hash and compare a thousand bytes again.
    """

    issuer: str
    issuerseq: int
    prev: str
    digest: str
    type: str
    data: Fact | Refusal
    identity: bytes = b""


class Screened(Struct, frozen=True, gc=False):
    """What a message is, provided that `signature` over `signed` is the issuer's.

    `public` is None when there is no signature to check: the result stands as it is. `signature`
    is the text in the body, in its only canonical spelling.
    """

    result: Event | Refusal
    public: bytes | None = None
    signed: bytes = b""
    signature: str = ""

    def verified(self) -> Event | Refusal:
        """Give the result once the signature was checked. libsodium works without the GIL."""
        if self.public is None or signature_is_valid(
            self.public,
            self.signed,
            a2b_base64(self.signature.encode().translate(_STANDARD) + b"=="),
        ):
            return self.result
        return Refusal(BAD_SIGNATURE, "the issuer's key did not sign these bytes")


def follow(head: ChainHead, event: Event) -> ChainHead | Refusal:
    """Step 7: the chain's head after `event`, or why it is not the issuer's next one."""
    expected = head.issuerseq + 1
    if event.issuerseq == expected and event.prev == head.digest:
        return ChainHead(event.issuerseq, event.digest)
    if event.issuerseq < expected:
        return Refusal(
            REPLAYED, f"issuerseq is {event.issuerseq}; the chain is at {head.issuerseq}"
        )
    if event.issuerseq != expected:
        return Refusal(BROKEN_CHAIN, f"issuerseq is {event.issuerseq}; expected {expected}")
    return Refusal(BROKEN_CHAIN, f"prev is {event.prev}; the chain is at {head.digest}")
