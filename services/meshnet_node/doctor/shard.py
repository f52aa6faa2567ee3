"""Whether this machine computes what its owner declares: from the files to the numbers.

    files      are they the ones they should be, and do they hold the layers?
    recipe     is one recipe declared, and does it fit the files?
    backend    is it installed, and can it use the device?

Then it is known what is to be proven, and `proof` goes on with it: load, version, layout, text, forward.

A target or an earlier identity says what the files should be. Files that are not those are not
computed with, and there is no report: it would be of something else. A cut that neither speaks of is a
warning, also to whoever has just made it: the next owner is told the same of the same file.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from msgspec import Struct

from meshnet_node.backends import LoadedShard, find_backend
from meshnet_node.capability import CapabilityContext, ShardSelection
from meshnet_node.doctor.check import (
    Check,
    Noting,
    Silent,
    Telling,
    had,
    make_checks,
    skip_checks,
)
from meshnet_node.doctor.expected import Expected, files_faults, is_taken_at_its_word, label
from meshnet_node.doctor.finding import Diagnosis, Finding, failed, ok, warning
from meshnet_node.doctor.proof import PROOF_CHECKS, Stamps, probe_capability, proven, stamps_of
from meshnet_node.foreign import shown
from meshnet_node.pin import PinError, Pinned, Progress, pin
from meshnet_node.recipe_identity import RuntimeRecipe
from meshnet_node.recipe_manifest import RecipeManifest, RecipeManifestError, load_manifest
from meshnet_node.targets import (
    LockedTarget,
    LockedTargetError,
    UnknownTarget,
    load_locked_target,
)

_FROM_FILES = ("weight_quantization", "tokenizer_revision")
_AT_ITS_WORD = (
    "get a locked target from whoever has the whole model and name it with --target; or cut it "
    "yourself"
)
_NO_SUCH_TARGET = (
    "whoever has the whole model makes the lock with `meshnet node pin MODEL --target NAME`; put the "
    "file that they give you there, or name its path with --target"
)
_NO_SOUND_LOCK = "lock the target, get its lock anew, or name another with --target"
_NOT_PINNED = (
    "if that does not say what to do, get the files again: `meshnet node pin` must take them"
)
_SHORT = 12


class ShardQuestion(Struct, frozen=True, kw_only=True):
    """Which layers of which files are to be proven, and under which recipe.

    `layers` are `[start, end)`: by default all that the files hold. `device` is by default the
    backend's best. `target` names a locked target or its file, `expected` is what the files were
    before. `watched` gives whoever follows the hashing of large files.
    """

    files: tuple[Path, ...]
    manifest: Path
    recipe_id: str | None = None
    recipe_version: str | None = None
    backend_id: str | None = None
    layers: tuple[int, int] | None = None
    device: str | None = None
    artifact_id: str | None = None
    revision: str | None = None
    target: str | None = None
    expected: Expected | None = None
    cache: bool = True
    watched: Callable[[], AbstractContextManager[Progress | None]] = nullcontext


class ShardCase:
    """What the checks of one shard learn, each for the next."""

    def __init__(self, question: ShardQuestion) -> None:
        self.question = question
        self.target: LockedTarget | None = None
        self.stamps: Stamps | None = None
        self.pinned: Pinned | None = None
        self.selection: ShardSelection | None = None
        self.recipe: RuntimeRecipe | None = None
        self.manifest: RecipeManifest | None = None
        self.context: CapabilityContext | None = None

    def recorded(self, context: CapabilityContext) -> str | None:
        """The output that the target records of what is to be proven, if it does."""
        selection = context.selection
        is_whole = (selection.start, selection.end) == (0, selection.artifact.layer_count)
        return self.target.recorded_output(context.recipe) if self.target and is_whole else None


class ExaminedShard(Struct, frozen=True):
    """What was found out, and the shard itself where it could be loaded."""

    diagnosis: Diagnosis
    shard: LoadedShard | None


def examine_shard(
    question: ShardQuestion,
    *,
    telling: Telling | None = None,
    now: Callable[[], float] = time.time,
) -> Diagnosis:
    """Make the checks of a shard and report. Blocks for as long as loading and computing take.

    Nothing on the machine is changed but the cache of digests. `now` dates the report.
    """
    case, told = ShardCase(question), Noting(telling or Silent())
    context = _context(case, told)
    if context is None:
        return Diagnosis(tuple(told.findings))
    report = probe_capability(
        context,
        files=question.files,
        stamps=case.stamps,
        recorded=case.recorded(context),
        telling=told,
        now=now,
    )
    return Diagnosis(tuple(told.findings), context.identity, report)


@contextmanager
def examined_shard(
    question: ShardQuestion,
    *,
    telling: Telling | None = None,
    now: Callable[[], float] = time.time,
) -> Iterator[ExaminedShard]:
    """As `examine_shard`, for whoever goes on to serve: the shard stays loaded until it is left."""
    case, told = ShardCase(question), Noting(telling or Silent())
    context = _context(case, told)
    if context is None:
        yield ExaminedShard(Diagnosis(tuple(told.findings)), None)
        return
    with proven(
        context,
        files=question.files,
        stamps=case.stamps,
        recorded=case.recorded(context),
        telling=told,
    ) as proof:
        report = proof.report(validated_at=now())
        diagnosis = Diagnosis(tuple(told.findings), context.identity, report)
        yield ExaminedShard(diagnosis, proof.shard)


def _context(case: ShardCase, telling: Telling) -> CapabilityContext | None:
    """What is to be proven; None, and the proof's checks skipped, where that is not in order."""
    findings = make_checks(SHARD_CHECKS, case, telling)
    if case.context is None:
        wrong = next(finding.name for finding in findings if not finding.lets_on)
        skip_checks(PROOF_CHECKS, f"it needs {wrong} to be in order first", telling)
    return case.context


def _files(case: ShardCase) -> Finding:
    question = case.question
    try:
        target = load_locked_target(question.target) if question.target is not None else None
    except UnknownTarget as error:
        return failed("files", str(error), _NO_SUCH_TARGET)
    except LockedTargetError as error:
        return failed("files", str(error), _NO_SOUND_LOCK)
    expected = question.expected
    known = target.artifact if target else expected.artifact if expected else None
    case.stamps = stamps_of(question.files)
    try:
        with question.watched() as progress:
            pinned = pin(
                question.files,
                artifact_id=question.artifact_id or (known.artifact_id if known else None),
                revision=question.revision or (known.revision if known else None),
                cache=question.cache,
                progress=progress,
            )
    except PinError as error:
        return failed("files", str(error), _NOT_PINNED)
    if faults := files_faults(pinned, target, expected):
        return failed(
            "files",
            "; ".join(faults),
            "get the files again from where they came; if they were changed on purpose, they are "
            "another artifact: pin them, and name no --target and no --expect",
        )
    artifact = pinned.artifact
    cut = artifact.derived_from
    held = (cut.shard_start, cut.shard_end) if cut else (0, artifact.layer_count)
    start, end = question.layers or held
    beside = ", counted without next-token-prediction layers" if pinned.nextn_layers else ""
    if not held[0] <= start < end <= held[1]:
        return failed(
            "files",
            f"layers [{start}, {end}) are asked for; the files hold [{held[0]}, {held[1]}) of "
            f"{artifact.layer_count}{beside}",
            "name layers that they hold with --layers, the last not included",
        )
    case.target, case.pinned = target, pinned
    case.selection = ShardSelection(artifact, start, end)
    what = f"layers [{start}, {end}) of {artifact.layer_count}"
    content = f"content {artifact.content_digest[:_SHORT]}{label(pinned, target, expected)}"
    found = f"{what}, {content}"
    if is_taken_at_its_word(pinned, target, expected):
        return warning("files", found, _AT_ITS_WORD)
    return ok("files", found)


def _recipe(case: ShardCase) -> Finding:
    question, pinned = case.question, had(case.pinned)
    try:
        manifest = load_manifest(question.manifest)
        recipe = manifest.recipe(question.recipe_id, question.recipe_version, question.backend_id)
    except FileNotFoundError:
        return failed(
            "recipe",
            f"there is no manifest {question.manifest}",
            "write one with `meshnet node manifest MODEL --output FILE`, and name it with --manifest",
        )
    except RecipeManifestError as error:
        return failed("recipe", str(error), "correct the manifest, or name another --recipe")
    wrong = [
        f"{axis}: declared {shown(stated)}, the files hold {shown(held)}"
        for axis in _FROM_FILES
        if (held := pinned.recipe_fields.get(axis)) not in {None, stated := getattr(recipe, axis)}
    ]
    if wrong:
        return failed(
            "recipe",
            "; ".join(wrong),
            "declare what the files hold (`meshnet node pin` shows it), or get the files of the "
            "declared recipe",
        )
    case.manifest, case.recipe = manifest, recipe
    digest = recipe.runtime_recipe_digest[:_SHORT]
    return ok("recipe", f"{recipe.recipe_id} {recipe.recipe_version}, digest {digest}")


def _backend(case: ShardCase) -> Finding:
    recipe, selection = had(case.recipe), had(case.selection)
    backend = find_backend(recipe.backend_id)
    devices = tuple(backend.devices)
    device = case.question.device or next(iter(devices), "")
    if device not in devices:
        return failed(
            "backend",
            f"{recipe.backend_id} cannot compute on {device or 'anything'!r} here; it can on: "
            f"{', '.join(devices) or 'nothing'}",
            "name one of those with --device, or install what the device needs",
        )
    is_synthetic = backend.synthetic is not False
    case.context = CapabilityContext(backend, selection, recipe, case.manifest, device)
    if is_synthetic:
        return warning(
            "backend",
            f"{recipe.backend_id} on {device} is synthetic: it computes no model",
            "fine for tests; nothing it does certifies a recipe",
        )
    return ok("backend", f"{recipe.backend_id} on {device}")


SHARD_CHECKS: tuple[Check[ShardCase, Finding], ...] = (
    Check("files", _files, "see that the files can be read"),
    Check("recipe", _recipe, "see that the manifest can be read", needs=("files",)),
    Check(
        "backend",
        _backend,
        "install the backend's package, whole, beside this one",
        needs=("recipe",),
    ),
)
