"""Digests: one value, one spelling, one SHA-256.

The canonical form of a value is UTF-8 JSON with sorted keys, no white space and non-ASCII
characters unescaped. For what identities are made of (objects with ASCII keys, lists, texts,
integers, booleans and null) that is RFC 8785. Whatever other JSON writers spell differently or
cannot spell is refused: every float (NaN and infinities among them), integers beyond 2^53-1, lone
surrogates, keys that are not text.

A digest names what it is a digest of, so that no two kinds of body can share one:

    domain_digest("meshnet.demo.v1", {"b": 1, "a": "é"})
    == SHA-256 of '{"body":{"a":"é","b":1},"domain":"meshnet.demo.v1"}'
"""

import hashlib
import json
from collections.abc import Mapping

from meshnet_node.recipe_identity._checks import (
    MAX_INTEGER,
    RecipeIdentityError,
    check_unicode,
    found,
)

_MAX_DEPTH = 32


def canonical_sha256(value: object) -> str:
    """SHA-256 of the canonical JSON of `value`, as 64 lowercase hex digits.

    Raises RecipeIdentityError naming the member (`body.layer_count`, `files[3]`; `value` is the
    outermost one) that has no canonical form, or that is nested deeper than 32.
    """
    _check_canonical(value, "", _MAX_DEPTH)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def domain_digest(domain: str, body: Mapping[str, object]) -> str:
    """Digest of a body under the name of what it is."""
    return canonical_sha256({"domain": domain, "body": dict(body)})


def _check_canonical(value: object, path: str, depth: int) -> None:
    field = path or "value"
    if depth == 0:
        raise RecipeIdentityError(f"{field}: nested deeper than {_MAX_DEPTH}")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        check_unicode(value, field)
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise RecipeIdentityError(
                f"{field}: found {found(value)}, expected an integer within ±(2^53-1)"
            )
    elif isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise RecipeIdentityError(f"{field}: found the key {found(key)}, expected a text")
            check_unicode(key, f"a key of {field}")
            _check_canonical(member, f"{path}.{key}" if path else key, depth - 1)
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            _check_canonical(member, f"{path}[{index}]", depth - 1)
    else:
        raise RecipeIdentityError(
            f"{field}: found {found(value)}, expected an object, a list, a text, an integer, "
            "a boolean or null"
        )
