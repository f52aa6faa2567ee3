"""Why two shards, or a route, may not compute together: the codes, and what carries one."""

from collections.abc import Iterable

from msgspec import Struct

from meshnet_node.recipe_identity._checks import RecipeIdentityError

MISMATCH_ARTIFACT = "artifact"
MISMATCH_WEIGHT_QUANTIZATION = "weight-quantization"
MISMATCH_ACTIVATION_RECIPE = "activation-recipe"
MISMATCH_CACHE_LAYOUT = "cache-layout"
MISMATCH_TOKENIZER = "tokenizer"
MISMATCH_ARCHITECTURE = "architecture"
MISMATCH_BACKEND = "backend"
MISMATCH_RUNTIME = "runtime"
MISMATCH_BOUNDARY_SCHEMA = "boundary-schema"
MISMATCH_RANGE = "range"
MISMATCH_FINGERPRINT = "fingerprint"
MISMATCH_UNCERTIFIED = "uncertified"


class RouteMismatch(Struct, frozen=True):
    """One reason against a route or a pair: a `MISMATCH_…` code and a text for people.

    `shard_index` is the shard it is about, None when it is about the route or the pair.
    """

    reason: str
    detail: str
    shard_index: int | None = None

    def describe(self) -> str:
        """One line for people: `shard 3: cache-layout: kv_dtype is 'f16', expected 'q8_0'`."""
        where = "" if self.shard_index is None else f"shard {self.shard_index}: "
        return f"{where}{self.reason}: {self.detail}"

    def to_dict(self) -> dict[str, object]:
        """The three members as JSON values."""
        return {"reason": self.reason, "detail": self.detail, "shard_index": self.shard_index}


class RouteIncompatible(RecipeIdentityError):
    """Shards that may not compute together; `mismatches` holds every reason."""

    def __init__(self, mismatches: Iterable[RouteMismatch]) -> None:
        self.mismatches = tuple(mismatches)
        super().__init__("; ".join(mismatch.describe() for mismatch in self.mismatches))
