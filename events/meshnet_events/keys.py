"""Event keys: Ed25519 keys whose text is an NKey, as NATS spells them.

An issuer is a *user* public key: 56 characters of base32, starting with `U`, that hold one prefix
byte (20 << 3), the 32 bytes of the key and a CRC-16/XMODEM of both, little endian. 35 bytes are
exactly 280 bits, so each key has one spelling. A seed is spelled `SU…` (58 characters).

    raw key  00 01 02 … 1f   ->   "UAAAC…"  (see tests/unit/test_keys.py)

An event key never logs in to NATS: the server chooses the nonce that a login signs, and could
choose one of our events. Where keys are kept is no concern of this module.
"""

import base64
import binascii

import nkeys
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError, CryptoError
from nacl.signing import SigningKey

_USER_PREFIX = bytes([nkeys.PREFIX_BYTE_USER])
_PUBLIC_LENGTH = 56
_MOST_KNOWN = 65_536
# a plain dict: to keep one in order of use, as `lru_cache` does, costs as much as looking up
_known: dict[str, bytes] = {}


class BadKey(ValueError):
    """A text is no key. The message says what it should be and never repeats a seed."""


def encode_public(raw: bytes) -> str:
    """The NKey text of a raw 32-byte Ed25519 public key."""
    body = _USER_PREFIX + raw
    checksum = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + checksum).decode("ascii")


def decode_public(text: str) -> bytes | None:
    """The raw 32 bytes of a user public key, or None when `text` is not one."""
    return _known.get(text) or _decode_public(text)


def _decode_public(text: str) -> bytes | None:
    # padding would make a shorter key of 56 characters, and libsodium reads 32 bytes unasked
    if len(text) != _PUBLIC_LENGTH or not text.isascii() or "=" in text:
        return None
    try:
        raw = base64.b32decode(text)
    except binascii.Error:
        return None
    body = raw[:-2]
    if not body.startswith(_USER_PREFIX) or binascii.crc_hqx(body, 0) != int.from_bytes(
        raw[-2:], "little"
    ):
        return None
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[text] = body[1:]
    return body[1:]


def signature_is_valid(public: bytes, message: bytes, signature: bytes) -> bool:
    """Strict Ed25519: libsodium refuses non-canonical encodings and small-order keys.

    No second library may answer this question: two that disagree on one signature fork the fold.
    """
    try:
        crypto_sign_open(signature + message, public)
    except (BadSignatureError, CryptoError):
        return False
    return True


class EventKey:
    """A node's or operator's signing key. It never shows its seed in `repr` or errors."""

    __slots__ = ("_signing", "public")

    def __init__(self, seed: bytes) -> None:
        """Build the key from its raw 32-byte seed."""
        self._signing = SigningKey(seed)
        self.public = encode_public(bytes(self._signing.verify_key))

    @classmethod
    def from_text(cls, text: str) -> "EventKey":
        """Read a seed spelled `SU…`; raises `BadKey` when it is not a user seed."""
        try:
            spelled = text.strip().encode("ascii")
            prefix, seed = nkeys.decode_seed(spelled)
        except (nkeys.NkeysError, ValueError):
            raise BadKey("not an NKey seed: expected 58 characters starting with SU") from None
        if prefix != nkeys.PREFIX_BYTE_USER:
            raise BadKey("this NKey seed is not a user's: expected one starting with SU")
        # nkeys reads a seed without looking at its length or checksum: a slip would be another key
        if len(seed) != 32 or nkeys.encode_seed(bytes(seed), prefix) != spelled:
            raise BadKey("this NKey seed has a wrong length or checksum: copy it anew")
        return cls(bytes(seed))

    def seed_text(self) -> str:
        """The seed as `SU…`, for the key file and nothing else."""
        return str(nkeys.encode_seed(bytes(self._signing), nkeys.PREFIX_BYTE_USER).decode("ascii"))

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of `message`."""
        return self._signing.sign(message).signature

    def __repr__(self) -> str:
        return f"EventKey({self.public})"
