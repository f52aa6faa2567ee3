"""What a member of a fact must look like: its type, its pattern, and the check.

Lengths and bounds are in the types, for msgspec to check while it decodes. Patterns are not, because
`msgspec.Meta(pattern=…)` costs half a microsecond a member on the fold's path: they go to JSON Schema
only, and a struct checks its members in `__post_init__`, by one expression for all of them where that
is possible. Only when it says no does `explain` look for the member that is wrong.

Texts are at most 1,024 characters unless said otherwise. Digests are 64 lower-case hex. Integers lie
within ±(2^53-1).
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta, Struct

from meshnet_events.keys import decode_public

MAX_INTEGER = 2**53 - 1
_REMEMBERED = 8_192

DIGEST_PATTERN = "[0-9a-f]{64}"
UUID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
SHARD_ID_PATTERN = "[a-z0-9-]{1,32}"
ENDPOINT_PATTERN = r"grpcs?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
KEY_PATTERN = "U[A-Z2-7]{55}"


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


def is_hex(text: str) -> bool:
    """Whether `text` is lower-case hex, of any even length: digests joined, say."""
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def _recurring(pattern: str) -> Callable[[str], bool]:
    """The check for a form whose texts come again and again: looking one up is cheaper."""
    match = re.compile(pattern).fullmatch
    return lru_cache(_REMEMBERED)(lambda text: match(text) is not None)


is_uuid = _recurring(UUID_PATTERN)
is_shard_id = _recurring(SHARD_ID_PATTERN)
is_endpoint = _recurring(ENDPOINT_PATTERN)


def is_key(text: str) -> bool:
    """Whether `text` is an NKey user public key."""
    return decode_public(text) is not None


def is_object(raw: msgspec.Raw) -> bool:
    """Whether the JSON value that `raw` holds is an object."""
    return bytes(memoryview(raw)[:1]) == b"{"


# What a member of this name must look like, in whatever struct it stands.
_Form = tuple[Callable[[Any], object], str]
_KEY: _Form = (is_key, "an NKey user public key (U…)")
_HEX: _Form = (is_hex, "64 lower-case hex")
_FORMS: dict[str, _Form] = {
    "boot_id": (is_uuid, "a UUID"),
    "endpoint": (is_endpoint, "grpc://host:port or grpcs://host:port"),
    "id": _HEX,
    "identity": (is_object, "an object"),
    "in_digest": _HEX,
    "input_digest": _HEX,
    "log_root": _HEX,
    "model_artifact_digest": _HEX,
    "node": _KEY,
    "out_digest": _HEX,
    "output_digest": _HEX,
    "peer": _KEY,
    "peer_boot_id": (is_uuid, "a UUID"),
    "recipe_key": _HEX,
    "runtime_recipe_digest": _HEX,
    "seams": (lambda seams: is_hex("".join(seams)), "64 lower-case hex each"),
    "shard_id": (is_shard_id, SHARD_ID_PATTERN),
}


def explain(owner: Struct) -> NoReturn:
    """Raise ValueError that names the member which is not of its form. One is known not to be."""
    for member in owner.__struct_fields__:
        is_right, expected = _FORMS.get(member, (bool, ""))
        if expected and not is_right(getattr(owner, member)):
            raise ValueError(f"{member}: expected {expected}")
    raise ValueError("a member is not of its form")
