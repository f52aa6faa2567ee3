"""What a member of a fact must look like: its type, its pattern, and the check.

Lengths and bounds are in the types, for msgspec to check while it decodes. Patterns are not, because
`msgspec.Meta(pattern=…)` costs half a microsecond a member on the fold's path: they go to JSON Schema
only, and a fact checks its members and those of its parts in its `__post_init__`, by one expression
for many of them where that is possible. Only when it says no does `explain` look for the member that
is wrong.

Texts are at most 1,024 characters unless said otherwise. Digests are 64 lower-case hex. Integers lie
within ±(2^53-1).
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, NoReturn, get_args

import msgspec
from msgspec import Meta, Struct

from meshnet_events.keys import decode_public

MAX_INTEGER = 2**53 - 1
_REMEMBERED = 8_192
_OPENING_BRACE = ord("{")
_SHAPES = bytes.maketrans(b"0123456789abcdefh", b"hhhhhhhhhhhhhhhh?")

DIGEST_PATTERN = "[0-9a-f]{64}"
UUID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
SHARD_ID_PATTERN = "[a-z0-9-]{1,32}"
ENDPOINT_PATTERN = r"grpcs?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
KEY_PATTERN = "U[A-Z2-7]{55}"
DIGEST_SHAPE = b"h" * 64
UUID_SHAPE = b"hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh"


def _shown(pattern: str) -> dict[str, Any]:
    return {"pattern": f"^{pattern}$"}


Text = Annotated[str, Meta(max_length=1024)]
ShortText = Annotated[str, Meta(max_length=128)]
SessionId = Annotated[str, Meta(min_length=1, max_length=128)]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Digest = Annotated[
    str, Meta(min_length=64, max_length=64, extra_json_schema=_shown(DIGEST_PATTERN))
]
Uuid = Annotated[str, Meta(min_length=36, max_length=36, extra_json_schema=_shown(UUID_PATTERN))]
ShardId = Annotated[
    str, Meta(min_length=1, max_length=32, extra_json_schema=_shown(SHARD_ID_PATTERN))
]
Endpoint = Annotated[str, Meta(max_length=1024, extra_json_schema=_shown(ENDPOINT_PATTERN))]
PublicKey = Annotated[
    str, Meta(min_length=56, max_length=56, extra_json_schema=_shown(KEY_PATTERN))
]
JsonObject = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]


def shape(text: str) -> bytes:
    """What `text` looks like: `h` for each lower-case hex digit, all else as it is (an h as ?).

    Several digests and UUIDs, put together, are so compared at once with what they must look like.
    That is three times as fast as a regular expression, and keeps no memory.
    """
    return text.encode().translate(_SHAPES)


def is_hex(text: str) -> bool:
    """Whether `text` is lower-case hex, of any length."""
    return shape(text) == b"h" * len(text)


def is_uuid(text: str) -> bool:
    """Whether `text` is a UUID in lower case."""
    return shape(text) == UUID_SHAPE


def _matches(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches; what comes again and again is looked up instead."""
    match = re.compile(pattern).fullmatch
    return lru_cache(_REMEMBERED)(lambda text: match(text) is not None)


is_shard_id = _matches(SHARD_ID_PATTERN)
is_endpoint = _matches(ENDPOINT_PATTERN)


def is_key(text: str) -> bool:
    """Whether `text` is an NKey user public key."""
    return decode_public(text) is not None


def is_object(raw: msgspec.Raw) -> bool:
    """Whether the JSON value that `raw` holds is an object."""
    return memoryview(raw)[0] == _OPENING_BRACE


_FORMS: tuple[tuple[object, Callable[[Any], bool], str], ...] = (
    (Digest, is_hex, "64 lower-case hex"),
    (Endpoint, is_endpoint, "grpc://host:port or grpcs://host:port"),
    (JsonObject, is_object, "an object"),
    (PublicKey, is_key, "an NKey user public key (U…)"),
    (ShardId, is_shard_id, SHARD_ID_PATTERN),
    (Uuid, is_uuid, "a UUID"),
)


def explain(fact: Struct) -> NoReturn:
    """Raise ValueError that names the member which is not of its form. One is known not to be."""
    raise ValueError(next(_faults(fact, ""), "a member is not of its form"))


def _faults(owner: Struct, path: str) -> Iterator[str]:
    for member in msgspec.structs.fields(owner):
        yield from _faults_of(getattr(owner, member.name), member.type, path + member.name)


def _faults_of(value: object, type_: object, path: str) -> Iterator[str]:
    if isinstance(value, Struct):
        yield from _faults(value, f"{path}.")
    elif isinstance(value, tuple):
        (of, _) = get_args(type_)
        for index, one in enumerate(value):
            yield from _faults_of(one, of, f"{path}[{index}]")
    for form, is_right, expected in _FORMS:
        if type_ == form and not is_right(value):
            yield f"{path}: expected {expected}"
