"""The tracker's own reading of an identity block: fingerprint, differences, route verdict.

The node computes the same answers in an implementation of its own. Neither imports the other, nor
a canonicaliser both could get wrong; only committed vectors and a property test hold them together.

A block is walked once, by tables. What survives is a `_Reading`: the fifteen values that decide
whether two shards may share a route, in the order of `_REASONS`, and the layers the shard holds.
Both digests, every difference and the route verdict are read off those.

Rules:
- A block is whatever JSON decodes to and may be hostile. One that is not sound raises `BlockError`
  and nothing else. Its message says what was found by kind or number, and never repeats text.
- Members are required and never defaulted, and no other is known: what is not stated is not
  proven, and a member nobody here knows may move the numbers. Two may be absent:
  `artifact.derived_from`, which is then null (a whole artifact), and `fingerprint`, whose digests
  are derived again and compared where it is present. Its labels, like all, only have to be there.
- The artifact digest covers the source of the weights, not the repository or the file they came
  from; the recipe digest covers the eleven axes, not the labels; neither covers the layers held.
- All layers are `[start, end)`.

The digests are SHA-256, in hex, of canonical JSON (keys sorted, no white space, UTF-8 unescaped).
With "…" for 64 digits, a whole model of two layers hashes these bytes for its artifact digest:

    {"body":{"architecture":"toy","architecture_digest":"…","layer_count":2,"source_digest":"…"},
    "domain":"meshnet.model-artifact.v1"}

(without the line break), and the recipe digest those of the axes under `meshnet.runtime-recipe.v1`.

Left out: whether a block must declare its fingerprint (the fold asks that of a registration),
evidence, admission, and any memory of which recipes are certified (callers say so by `status`).
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import msgspec

__all__ = ["BlockError", "Mismatch", "derive", "explain", "route_reasons"]


class BlockError(ValueError):
    """A block that is not sound: `field` is the dotted path of the fault, `message` what it is.

    The fault of the block itself is at `block`; a fault of an object's set of members is at the
    path of the missing member, or of the object that has one too many.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Mismatch(msgspec.Struct, frozen=True):
    """One reason why shards may not share a route.

    `reason` is a code of the contract, `detail` a sentence for people, and `shard_index` the
    position in the route of the shard at fault, or None for a fault of the route as a whole.
    """

    reason: str
    detail: str
    shard_index: int | None = None


_MAX_INTEGER: Final = 2**53 - 1  # the largest that every JSON library reads exactly
_MAX_TEXT: Final = 1_024  # characters, as everywhere in the contract
_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MOVING: Final = frozenset({"main", "master", "head", "latest", "dev", "trunk"})
_KINDS: Final = {
    type(None): "null",
    bool: "a boolean",
    float: "a float",
    list: "an array",
    dict: "an object",
}


def _found(value: object) -> str:
    """Describe a value without repeating it: a hostile one may be vast, or someone's secret."""
    if type(value) is str:
        return f"text of {len(value)} characters"
    if type(value) is int:
        # str() of an unbounded integer raises beyond some thousands of digits.
        return str(value) if abs(value) <= _MAX_INTEGER else "an integer beyond 2^53-1"
    return _KINDS.get(type(value), "something that JSON does not have")


def _text(path: str, value: object) -> str:
    if type(value) is not str:
        raise BlockError(path, f"expected text, found {_found(value)}")
    if not value.strip():
        raise BlockError(path, "expected text, found an empty one")
    if len(value) > _MAX_TEXT:
        raise BlockError(path, f"expected at most {_MAX_TEXT} characters, found {len(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BlockError(path, "expected Unicode text, found a lone surrogate") from None
    return value


def _pin(path: str, value: object) -> str:
    text = _text(path, value)
    name = text.strip().lower()
    if name in _MOVING or name.startswith("refs/"):
        raise BlockError(path, "expected a pinned revision, found a reference that moves")
    return text


def _digest(path: str, value: object) -> str:
    if type(value) is not str or not _HEX_DIGEST.fullmatch(value):
        raise BlockError(path, f"expected 64 lowercase hex digits, found {_found(value)}")
    return value


def _integer(path: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:  # bool is another type, and refused
        expected = str(least) if least == most else f"an integer from {least}"
        raise BlockError(path, f"expected {expected}, found {_found(value)}")
    return value


class _Shape:
    """One kind of object in a block, and what each member must be, in the order of the checks."""

    def __init__(
        self,
        path: str,
        *,
        texts: dict[str, Callable[[str, object], str]] | None = None,
        integers: dict[str, tuple[int, int]] | None = None,
        objects: tuple[str, ...] = (),
        optional: tuple[str, ...] = (),
    ) -> None:
        self._path = path
        # Paths are joined here once: doing so for each member of each block is a third of the work.
        self._texts = [(name, self.at(name), check) for name, check in (texts or {}).items()]
        self._integers = [
            (name, self.at(name), least, most) for name, (least, most) in (integers or {}).items()
        ]
        self._required = (*(texts or ()), *(integers or ()), *objects)
        self._optional = optional

    def at(self, name: str) -> str:
        """Return the dotted path of a member."""
        return f"{self._path}.{name}" if self._path else name

    def members(self, value: object) -> dict[str, object]:
        """Return the object itself, once it is one and has the members that it should have."""
        where = self._path or "block"
        if type(value) is not dict:
            raise BlockError(where, f"expected an object, found {_found(value)}")
        for name in self._required:
            if name not in value:
                raise BlockError(self.at(name), "expected, and not there")
        known = len(self._required) + sum(name in value for name in self._optional)
        if len(value) > known:
            raise BlockError(where, f"expected no other member, found {len(value) - known}")
        return value

    def read_texts(self, members: dict[str, object]) -> dict[str, str]:
        return {name: check(path, members[name]) for name, path, check in self._texts}

    def read_integers(self, members: dict[str, object]) -> dict[str, int]:
        return {
            name: _integer(path, members[name], least, most)
            for name, path, least, most in self._integers
        }


_BLOCK: Final = _Shape(
    "",
    integers={
        "schema_version": (1, 1),
        "shard_start": (0, _MAX_INTEGER),
        "shard_end": (1, _MAX_INTEGER),
    },
    objects=("artifact", "recipe"),
    optional=("fingerprint",),
)
_ARTIFACT: Final = _Shape(
    "artifact",
    texts={
        "artifact_id": _text,
        "revision": _pin,
        "content_digest": _digest,
        "architecture": _text,
        "architecture_digest": _digest,
    },
    integers={"layer_count": (1, _MAX_INTEGER)},
    optional=("derived_from",),
)
_DERIVED_FROM: Final = _Shape(
    "artifact.derived_from",
    texts={"source_artifact_digest": _digest},
    integers={"shard_start": (0, _MAX_INTEGER), "shard_end": (1, _MAX_INTEGER)},
)
_RECIPE: Final = _Shape(
    "recipe",
    texts={
        "weight_quantization": _text,
        "activation_dtype": _text,
        "compute_dtype": _text,
        "kv_dtype": _text,
        "kv_layout": _text,
        "tokenizer_revision": _pin,
        "architecture_adapter": _text,
        "backend_id": _text,
        "runtime_version": _text,
        "recipe_id": _text,
        "recipe_version": _text,
        "catalogue_version": _text,
    },
    integers={
        "boundary_schema_version": (1, _MAX_INTEGER),
        "protocol_schema_version": (1, _MAX_INTEGER),
    },
)
_FINGERPRINT: Final = _Shape(
    "fingerprint",
    texts={
        "model_artifact_digest": _digest,
        "runtime_recipe_digest": _digest,
        "recipe_id": _text,
        "recipe_version": _text,
        "catalogue_version": _text,
    },
)

# Everything that two shards of one route must agree on, in the order differences are told, with
# the reason each reports. The names are the keys under which the digests cover the values.
_ARTIFACT_REASONS: Final = {
    "source_digest": "artifact",
    "architecture": "architecture",
    "architecture_digest": "architecture",
    "layer_count": "artifact",
}
_AXIS_REASONS: Final = {
    "weight_quantization": "weight-quantization",
    "activation_dtype": "activation-recipe",
    "compute_dtype": "activation-recipe",
    "kv_dtype": "cache-layout",
    "kv_layout": "cache-layout",
    "tokenizer_revision": "tokenizer",
    "architecture_adapter": "architecture",
    "backend_id": "backend",
    "runtime_version": "runtime",
    "boundary_schema_version": "boundary-schema",
    "protocol_schema_version": "boundary-schema",
}
_REASONS: Final = {**_ARTIFACT_REASONS, **_AXIS_REASONS}
REASONS: Final = frozenset(_REASONS.values())
"""Every reason that `explain` gives."""

# Statuses that let a route pass. Any other, even one not of the glossary, does not.
_PASSING: Final = {False: ("certified",), True: ("certified", "dark")}  # by `for_certification`


class _Reading(NamedTuple):
    """A sound block: the digests, what must agree along a route, and the layers it holds."""

    digests: tuple[str, str]
    compared: dict[str, str | int]
    layer_count: int
    layers: range


def _read(block: object) -> _Reading:
    members = _BLOCK.members(block)
    stated = _BLOCK.read_integers(members)
    artifact, layer_count, held = _read_artifact(members["artifact"])
    recipe = _read_recipe(members["recipe"])

    layers = _range_within(_BLOCK, stated, limit=held.stop)
    if layers.start < held.start:
        message = f"expected at least {held.start}, where the cut file starts, found {layers.start}"
        raise BlockError("shard_start", message)

    digests = (
        _canonical_digest("meshnet.model-artifact.v1", artifact),
        _canonical_digest("meshnet.runtime-recipe.v1", recipe),
    )
    if "fingerprint" in members:
        _check_fingerprint(members["fingerprint"], digests)
    return _Reading(digests, {**artifact, **recipe}, layer_count, layers)


def _read_artifact(value: object) -> tuple[dict[str, str | int], int, range]:
    """Return what the artifact digest covers, the layer count, and the layers the file holds."""
    members = _ARTIFACT.members(value)
    texts = _ARTIFACT.read_texts(members)
    layer_count = _ARTIFACT.read_integers(members)["layer_count"]
    source, held = texts["content_digest"], range(layer_count)
    if (binding := members.get("derived_from")) is not None:
        source, held = _read_binding(binding, layer_count)
        if source == texts["content_digest"]:
            path = _DERIVED_FROM.at("source_artifact_digest")
            raise BlockError(path, "expected another artifact, found this one's content_digest")
    covered: dict[str, str | int] = {
        "source_digest": source,
        "architecture": texts["architecture"],
        "architecture_digest": texts["architecture_digest"],
        "layer_count": layer_count,
    }
    return covered, layer_count, held


def _read_binding(value: object, layer_count: int) -> tuple[str, range]:
    """Return the source that a cut file came from, and the layers that were cut."""
    members = _DERIVED_FROM.members(value)
    source = _DERIVED_FROM.read_texts(members)["source_artifact_digest"]
    stated = _DERIVED_FROM.read_integers(members)
    return source, _range_within(_DERIVED_FROM, stated, limit=layer_count)


def _read_recipe(value: object) -> dict[str, str | int]:
    """Return the axes. The labels are checked, and left behind: nothing compares them."""
    members = _RECIPE.members(value)
    stated: dict[str, str | int] = {**_RECIPE.read_texts(members), **_RECIPE.read_integers(members)}
    return {axis: stated[axis] for axis in _AXIS_REASONS}


def _range_within(shape: _Shape, stated: dict[str, int], limit: int) -> range:
    start, end = stated["shard_start"], stated["shard_end"]
    if end <= start:
        raise BlockError(shape.at("shard_end"), f"expected more than {start}, found {end}")
    if end > limit:
        raise BlockError(shape.at("shard_end"), f"expected at most {limit}, found {end}")
    return range(start, end)


def _check_fingerprint(value: object, digests: tuple[str, str]) -> None:
    declared = _FINGERPRINT.read_texts(_FINGERPRINT.members(value))
    names = ("model_artifact_digest", "runtime_recipe_digest")
    for name, derived in zip(names, digests, strict=True):
        if declared[name] != derived:
            message = f"expected {name} {derived[:12]}…, derived from the block, found another"
            raise BlockError("fingerprint", message)


_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def _canonical_digest(domain: str, body: dict[str, str | int]) -> str:
    return sha256(_encode({"body": body, "domain": domain})).hexdigest()


def derive(block: object) -> tuple[str, str]:
    """Return `(model_artifact_digest, runtime_recipe_digest)`, each 64 hex, of a decoded block.

    Raises `BlockError`, and nothing else, for anything that is not a sound block, one that
    declares another fingerprint included.
    """
    return _read(block).digests


def explain(
    left_block: object, right_block: object, *, shard_index: int | None = None
) -> tuple[Mismatch, ...]:
    """Return every difference of `right_block` from `left_block` that moves the numbers.

    Both axes of one reason may differ, and then both are told. `shard_index` is carried into each
    mismatch. Empty means that the two may share a route. Raises `BlockError` if either is unsound.
    """
    return _differences(_read(left_block), _read(right_block), shard_index)


def route_reasons(
    blocks: Sequence[object],
    *,
    status: Literal["unknown", "dark", "certified", "revoked"] | None = None,
    for_certification: bool = False,
) -> tuple[Mismatch, ...]:
    """Return every reason why these shards, in any order, may not form a route. Empty means yes.

    Differences from the first shard come first, by shard index, then `range`, then `uncertified`.
    `status` is that of the first shard's recipe, or None to leave certification out of the
    question. An empty route is refused for its range alone. Raises `BlockError` for the first
    unsound block.
    """
    if not blocks:
        return (Mismatch("range", "the route has no shards, so no layer is held"),)
    readings = [_read(block) for block in blocks]
    first = readings[0]
    reasons = [
        mismatch
        for index, reading in enumerate(readings)
        for mismatch in _differences(first, reading, index)
    ]
    if fault := _coverage_fault(readings, first.layer_count):
        reasons.append(Mismatch("range", fault))
    passing = _PASSING[for_certification]
    if status is not None and status not in passing:
        detail = f"the recipe is {status}, and this route needs one that is {' or '.join(passing)}"
        reasons.append(Mismatch("uncertified", detail))
    return tuple(reasons)


def _differences(left: _Reading, right: _Reading, index: int | None) -> tuple[Mismatch, ...]:
    return tuple(
        Mismatch(reason, f"{name} is {_shown(found)}, expected {_shown(expected)}", index)
        for name, reason in _REASONS.items()
        if (found := right.compared[name]) != (expected := left.compared[name])
    )


def _shown(value: str | int) -> str:
    """Quote a value of a sound block, short enough for a line; repr() disarms control codes."""
    if type(value) is str and len(value) > 40:
        return f"{value[:39]!r}…"
    return repr(value)


def _coverage_fault(readings: Sequence[_Reading], layer_count: int) -> str | None:
    """Name the layers of `[0, layer_count)` that no shard holds, and those held beyond it."""
    gaps = []
    reached = 0
    for start, end in sorted((reading.layers.start, reading.layers.stop) for reading in readings):
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    # The first shard's layer count rules, and one of a longer model may start beyond it.
    gaps.append((reached, layer_count))
    faults = [
        f"no shard holds layers [{start}, {min(end, layer_count)})"
        for start, end in gaps
        if start < min(end, layer_count)
    ]
    if reached > layer_count:
        faults.append(f"layers [{layer_count}, {reached}) are beyond the last")
    return "; ".join(faults) or None
