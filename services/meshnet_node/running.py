"""What runs, held against what a recipe declares: axis by axis, nothing taken on trust.

The two come from different places, or comparing them would be idle: a recipe from the manifest that
its owner wrote, what runs from the backend once it has loaded, and the schema versions from the protocol
that is linked in here.
"""

from collections.abc import Mapping

from msgspec import Struct

from meshnet_node.backends import Backend, LoadedShard
from meshnet_node.foreign import kind_of, shown, text_of
from meshnet_node.recipe_identity import RECIPE_AXES, RuntimeRecipe
from meshnet_proto import BUNDLE_VERSION, SCHEMA_VERSION

TOKENIZER = "tokenizer_revision"
RUNTIME = "runtime_version"


class Difference(Struct, frozen=True):
    """An axis whose declared value is not what runs; `running` is None where nothing was stated."""

    axis: str
    declared: str | int
    running: str | int | None

    def describe(self) -> str:
        """One line for people."""
        running = "nothing that says so" if self.running is None else shown(self.running)
        return f"{self.axis}: declared {shown(self.declared)}, running {running}"


def differences(
    recipe: RuntimeRecipe, backend: Backend, shard: LoadedShard
) -> tuple[Difference, ...]:
    """Every axis on which what runs is not what `recipe` declares.

    Both the backend and the shard are asked for the running version. A tokenizer may go unstated: not
    every file holds one. An axis that no recipe has is a difference too. Raises what the backend does.
    """
    stated: Mapping[str, object] = dict(shard.axes)
    running: dict[str, object] = {
        "boundary_schema_version": BUNDLE_VERSION,
        "protocol_schema_version": SCHEMA_VERSION,
        **stated,
    }
    pairs = [(axis, declared, running.get(axis)) for axis, declared in recipe.axes.items()]
    pairs.append((RUNTIME, recipe.runtime_version, backend.runtime_version))
    found = [
        Difference(axis, declared, _told(value))
        for axis, declared, value in pairs
        if not (type(value) is type(declared) and value == declared)
        and not (value is None and axis == TOKENIZER)
    ]
    found += [
        Difference(text_of(axis), "no such axis", _told(value))
        for axis, value in stated.items()
        if axis not in RECIPE_AXES
    ]
    return tuple(dict.fromkeys(found))  # the shard's version and the backend's are mostly one


def _told(value: object) -> str | int | None:
    """What a backend stated: as it is, if it is of a kind that an axis can be."""
    return value if value is None or type(value) is str or type(value) is int else kind_of(value)
