"""A recipe to start from: what the files decide and what a backend reports once it has loaded a layer.

It is a proposal. Whoever puts it into a manifest declares it, and from then on the doctor holds what
runs against it: a later build that reports something else is caught, which it would not be if it were
asked again each time.

A backend is somebody else's code, as in the proof: whatever it raises but a `BackendError`, which has
words of its own, becomes one text that says whose fault it is.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from meshnet_node.backends import BackendError, find_backend
from meshnet_node.doctor.proof import FOR_ITS_MAKER, REPORT_IT
from meshnet_node.foreign import fault_text
from meshnet_node.pin.identity import read_facts
from meshnet_node.pin.split import open_artifact
from meshnet_node.recipe_identity import RECIPE_AXES, RecipeIdentityError, RuntimeRecipe
from meshnet_proto import BUNDLE_VERSION, SCHEMA_VERSION


class CannotDeclare(ValueError):
    """No recipe follows from these files and this backend; the message says what is in the way."""


def observed_recipe(
    files: Sequence[Path],
    backend_id: str,
    *,
    labels: tuple[str, str, str],
    device: str | None = None,
    tokenizer_revision: str | None = None,
) -> RuntimeRecipe:
    """The recipe that runs when `backend_id` loads the first layer of `files`.

    `labels` are recipe id, its version and the catalogue's. `tokenizer_revision` is needed, and
    allowed, where the files hold no tokenizer. Raises `CannotDeclare`, `PinError` and `BackendError`.
    """
    with open_artifact(files) as artifact:
        facts = read_facts(artifact)
    start = facts.origin.start if facts.origin else 0
    backend = find_backend(backend_id)
    with _naming_faults_of(backend_id):
        device = device or next(iter(backend.devices), "")
        with closing(backend.load(files, start=start, end=start + 1, device=device)) as shard:
            axes: dict[str, object] = dict(shard.axes)
        runtime_version = backend.runtime_version
    decided: dict[str, object] = {
        "weight_quantization": facts.weight_quantization,
        "tokenizer_revision": facts.tokenizer_digest or tokenizer_revision,
        "runtime_version": runtime_version,
        "boundary_schema_version": BUNDLE_VERSION,
        "protocol_schema_version": SCHEMA_VERSION,
    }
    if tokenizer_revision not in {None, decided["tokenizer_revision"]}:
        raise CannotDeclare(
            f"tokenizer_revision: found {facts.tokenizer_digest} in the files, expected what was named; "
            "name none where the files hold a tokenizer"
        )
    for axis, value in decided.items():
        if value is not None and axes.setdefault(axis, value) != value:
            raise CannotDeclare(
                f"{axis}: {backend_id} reports {str(axes[axis])[:200]!r}, expected "
                f"{str(value)[:200]!r}, as the files and the backend itself say; it does not run what "
                "was asked for, so ask whoever makes it"
            )
    if missing := [axis for axis in RECIPE_AXES if axis not in axes]:
        raise CannotDeclare(
            f"{', '.join(missing)}: neither the files nor {backend_id} say what it is; "
            + _remedy(missing)
        )
    names = ("recipe_id", "recipe_version", "catalogue_version")
    try:
        return RuntimeRecipe.from_dict(axes | dict(zip(names, labels, strict=True)))
    except RecipeIdentityError as error:
        raise CannotDeclare(f"{error}; no recipe can be declared with it") from error


@contextmanager
def _naming_faults_of(backend_id: str) -> Iterator[None]:
    try:
        yield
    except BackendError:
        raise
    except (Exception, SystemExit) as error:
        raise CannotDeclare(
            f"{backend_id} cannot load a layer of these files and say what runs: {fault_text(error)}; "
            f"{REPORT_IT}"
        ) from error


def _remedy(missing: Sequence[str]) -> str:
    """What to do about axes that nobody states."""
    if missing == ["tokenizer_revision"]:
        return "name the digest or commit of the tokenizer with --tokenizer-revision"
    return f"a backend reports every axis of what it runs: {FOR_ITS_MAKER}"
