r"""The recipes that a node may run, declared by its owner in a TOML file.

A node states how it executes a model; it does not find out and then agree with itself. What it
states is written down here, and the doctor compares it with what runs. The file:

    format = "meshnet.recipe-manifest.v1"

    [[recipe]]
    recipe_id = "tiny-f32"
    recipe_version = "1"
    catalogue_version = "1"
    weight_quantization = "F32:5,Q8_0:14"
    activation_dtype = "float32"
    compute_dtype = "float32"
    kv_dtype = "float32"
    kv_layout = "contiguous"
    tokenizer_revision = "79ccc72752861bb313168c124b88fde4c6d0b2431a12db802a62b7c6872b73d2"
    architecture_adapter = "llama"
    backend_id = "reference-numpy"
    runtime_version = "1"
    boundary_schema_version = 1
    protocol_schema_version = 1

one `[[recipe]]` for each, in any order. Its recipe digest is that of the eleven axes (all members but
the first three, which are labels), here

    8f83182513e36633ea384549fe50abb4f768f3cfb9e12d217b4a34b6f27f9782

Rules

- Every axis and every label is stated; nothing defaults, the schema versions included. A member that
  is not known is refused: it may move the numbers.
- Two recipes may not go by the same id, version and backend: nobody could say which was meant.
- Every recipe that is wrong is named at once, by its place in the file.
- The file is at most 64 KiB: what is in it goes to a parser that has no bounds of its own.

`meshnet node manifest` writes one for a model and a backend that are at hand.
"""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from meshnet_node.files import replace_file
from meshnet_node.recipe_identity import RecipeIdentityError, RuntimeRecipe

FORMAT = "meshnet.recipe-manifest.v1"
MAX_MANIFEST = 65_536

_LONGEST_LINE = 8_192  # the parser's time grows with the square of a key's parts
_SHOWN = 8
_SHOWN_TEXT = 80
_LABELS = ("recipe_id", "recipe_version", "catalogue_version")
_DEL = "\x7f"


class RecipeManifestError(ValueError):
    """A manifest cannot be read, or does not hold what was asked of it."""


class NoSuchRecipe(RecipeManifestError):
    """No recipe of a manifest, or more than one, goes by what was asked for."""


class RecipeManifest(Struct, frozen=True):
    """The recipes of one manifest, at least one, no two of the same id, version and backend.

    `origin` says where they were read, for messages.
    """

    recipes: tuple[RuntimeRecipe, ...]
    origin: str = "the manifest"

    def __post_init__(self) -> None:
        if not self.recipes:
            raise RecipeManifestError(
                f"{self.origin} declares no recipe; it needs a [[recipe]], which "
                "`meshnet node manifest` writes"
            )
        seen: set[tuple[str, str, str]] = set()
        for recipe in self.recipes:
            names = (recipe.recipe_id, recipe.recipe_version, recipe.backend_id)
            if names in seen:
                raise RecipeManifestError(
                    f"{self.origin} declares {_named(recipe)} twice; give one of the two another "
                    "recipe_version"
                )
            seen.add(names)

    def recipe(
        self,
        recipe_id: str | None = None,
        version: str | None = None,
        backend_id: str | None = None,
    ) -> RuntimeRecipe:
        """The one recipe that goes by all that is named. Raises `NoSuchRecipe`, listing them all."""
        asked = {"recipe_id": recipe_id, "recipe_version": version, "backend_id": backend_id}
        wanted = {name: value for name, value in asked.items() if value is not None}
        found = [
            recipe
            for recipe in self.recipes
            if all(getattr(recipe, name) == value for name, value in wanted.items())
        ]
        if len(found) == 1:
            return found[0]
        listed = _listed([_named(recipe) for recipe in self.recipes], "; ")
        if not wanted:
            raise NoSuchRecipe(
                f"{self.origin} declares {len(found)} recipes, and which one is meant was not said; "
                f"there is: {listed}"
            )
        asked_for = ", ".join(f"{name} {_cut(value)!r}" for name, value in wanted.items())
        raise NoSuchRecipe(
            f"{self.origin}: {len(found)} of its recipes go by {asked_for}, expected one; there is: "
            f"{listed}"
        )


def load_manifest(path: Path) -> RecipeManifest:
    """The manifest in a file. Raises `RecipeManifestError`, and OSError for one it cannot read."""
    if path.exists() and not path.is_file():
        raise RecipeManifestError(f"{path} is no regular file; name a recipe manifest")
    with path.open("rb") as file:
        content = file.read(MAX_MANIFEST + 1)
    return parse_manifest(content, origin=str(path))


def parse_manifest(content: bytes, *, origin: str = "the manifest") -> RecipeManifest:
    """The manifest that `content` spells. Raises `RecipeManifestError` and nothing else."""
    if len(content) > MAX_MANIFEST:
        raise RecipeManifestError(
            f"{origin} is larger than {MAX_MANIFEST:,} bytes: no recipe manifest; declare fewer "
            "recipes in a file"
        )
    if any(len(line) > _LONGEST_LINE for line in content.split(b"\n")):
        raise RecipeManifestError(
            f"{origin} has a line of more than {_LONGEST_LINE:,} bytes: no recipe manifest"
        )
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits
        raise RecipeManifestError(f"{origin} is not TOML: {_cause(error)}") from error
    if document.get("format") != FORMAT:
        raise RecipeManifestError(
            f'{origin}: format: expected format = "{FORMAT}" as its first line; '
            "`meshnet node manifest` writes a manifest"
        )
    unknown = sorted(document.keys() - {"format", "recipe"})
    tables = document.get("recipe", [])
    if unknown or not isinstance(tables, list):
        raise RecipeManifestError(
            f"{origin}: found {_listed([repr(_cut(name)) for name in unknown]) or 'no [[recipe]]'}, "
            "expected nothing but format and [[recipe]] tables; a member that is not known may move "
            "the numbers"
        )
    return RecipeManifest(_recipes(tables, origin), origin)


def render(recipes: Iterable[RuntimeRecipe]) -> str:
    """The text of a manifest that declares `recipes`. Raises `RecipeManifestError`."""
    manifest = RecipeManifest(tuple(recipes))
    lines = [f"format = {_quoted(FORMAT)}"]
    for recipe in manifest.recipes:
        members = {name: getattr(recipe, name) for name in _LABELS} | recipe.axes
        lines += ["", "[[recipe]]"]
        lines += [f"{name} = {_quoted(value)}" for name, value in members.items()]
    return "\n".join(lines) + "\n"


def write_manifest(path: Path, recipes: Iterable[RuntimeRecipe]) -> None:
    """Write a manifest, whole or not at all. Raises `RecipeManifestError` and OSError."""
    content = render(recipes).encode()
    parse_manifest(content, origin=str(path))  # what is written can be read
    replace_file(path, content)


def _recipes(tables: list[Any], origin: str) -> tuple[RuntimeRecipe, ...]:
    recipes, problems = [], []
    for number, table in enumerate(tables, start=1):
        try:
            recipes.append(RuntimeRecipe.from_dict(table))
        except RecipeIdentityError as error:
            problems.append(f"recipe {number}: {error}")
    if problems:
        raise RecipeManifestError(
            f"{origin}: {_listed(problems, '; ')}. State every axis and label, and nothing else"
        )
    return tuple(recipes)


def _named(recipe: RuntimeRecipe) -> str:
    name, version, backend = recipe.recipe_id, recipe.recipe_version, recipe.backend_id
    return f"{_cut(name)!r} version {_cut(version)!r} on {_cut(backend)!r}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…"


def _listed(texts: list[str], between: str = ", ") -> str:
    more = len(texts) - _SHOWN
    return between.join(texts[:_SHOWN]) + (f"{between}and {more} more" if more > 0 else "")


def _cause(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:200]


def _quoted(value: object) -> str:
    """A value in TOML. Its basic strings are JSON's, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace(_DEL, "\\u007f")
