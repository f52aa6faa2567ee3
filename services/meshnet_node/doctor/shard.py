"""Whether this machine computes what its owner declares: from the files to the numbers.

    files      are they the ones they should be, and do they hold the layers?
    recipe     is one recipe declared, and does it fit the files?
    backend    is it installed, and can it use the device?
    load       do the layers load?
    version    is the running version the declared one?
    layout     is everything else that runs as declared, now that the backend has settled it?
    forward    does a bounded real forward give the numbers it must?

The report speaks of all of them: it passes only if none failed.

A target or an earlier identity says what the files should be. Files that are not those are not
computed with, and there is no report: it would be of something else.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from meshnet_node.backends import Backend, LoadedShard, find_backend
from meshnet_node.capability import CapabilityContext, CapabilityReport, ShardSelection
from meshnet_node.doctor.check import Check, Silent, Telling, make_checks
from meshnet_node.doctor.expected import Expected, files_faults, label
from meshnet_node.doctor.finding import Diagnosis, Finding, failed, ok, warning
from meshnet_node.foreign import fault_text, shown
from meshnet_node.pin import PinError, Pinned, Progress, pin
from meshnet_node.probe import Measured, make_report, measure
from meshnet_node.recipe_identity import RuntimeRecipe
from meshnet_node.recipe_manifest import RecipeManifest, RecipeManifestError, load_manifest
from meshnet_node.running import RUNTIME, Difference, differences
from meshnet_node.targets import LockedTarget, LockedTargetError, load_locked_target

_T = TypeVar("_T")
_FROM_FILES = ("weight_quantization", "tokenizer_revision")
_SHORT = 12


class ShardQuestion(Struct, frozen=True, kw_only=True):
    """Which layers of which files are to be proven, and under which recipe.

    `layers` are `[start, end)`: by default all that the files hold. `device` is by default the
    backend's best. `target` names a locked target, `expected` is what the files were before. `watched`
    gives whoever follows the hashing of large files.
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
        self.pinned: Pinned | None = None
        self.selection: ShardSelection | None = None
        self.recipe: RuntimeRecipe | None = None
        self.manifest: RecipeManifest | None = None
        self.context: CapabilityContext | None = None
        self.backend: Backend | None = None
        self.shard: LoadedShard | None = None
        self.differences: tuple[Difference, ...] = ()
        self.measured = Measured("error")


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
    case = ShardCase(question)
    telling = telling or Silent()
    try:
        findings = make_checks(SHARD_CHECKS, case, telling)
    finally:
        fault = _close(case.shard)
    if fault is not None:
        findings = (*findings, failed("close", fault, _REPORT_IT))
        telling.finds(findings[-1])
    return _diagnosis(case, findings, now())


@contextmanager
def examined_shard(
    question: ShardQuestion,
    *,
    telling: Telling | None = None,
    now: Callable[[], float] = time.time,
) -> Iterator[ExaminedShard]:
    """As `examine_shard`, for whoever goes on to serve: the shard stays loaded until it is left."""
    case = ShardCase(question)
    try:
        findings = make_checks(SHARD_CHECKS, case, telling or Silent())
        yield ExaminedShard(_diagnosis(case, findings, now()), case.shard)
    finally:
        if case.shard is not None:
            case.shard.close()


def _diagnosis(case: ShardCase, findings: tuple[Finding, ...], validated_at: float) -> Diagnosis:
    context = case.context
    if context is None:
        return Diagnosis(findings)
    return Diagnosis(findings, context.identity, _report(context, case, findings, validated_at))


def _report(
    context: CapabilityContext, case: ShardCase, findings: Sequence[Finding], validated_at: float
) -> CapabilityReport:
    faults = [f"{one.name}: {one.found}" for one in findings if one.status == "failed"]
    status = case.measured.status
    return make_report(
        context,
        case.measured,
        "failed" if faults and status == "passed" else status,
        faults,
        validated_at=validated_at,
    )


def _close(shard: LoadedShard | None) -> str | None:
    try:
        if shard is not None:
            shard.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the backend is somebody else's
        return fault_text(error)
    return None


def _files(case: ShardCase) -> Finding:
    question = case.question
    try:
        target = load_locked_target(question.target) if question.target is not None else None
    except LockedTargetError as error:
        return failed("files", str(error), "lock the target, or name another with --target")
    expected = question.expected
    known = target.artifact if target else expected.artifact if expected else None
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
        return failed("files", str(error), "get the files again; `meshnet node pin` must take them")
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
    if not held[0] <= start < end <= held[1]:
        return failed(
            "files",
            f"layers [{start}, {end}) are asked for; the files hold [{held[0]}, {held[1]}) of "
            f"{artifact.layer_count}, counted without next-token-prediction layers",
            "name layers that they hold with --layers, the last not included",
        )
    case.target, case.pinned = target, pinned
    case.selection = ShardSelection(artifact, start, end)
    what = f"layers [{start}, {end}) of {artifact.layer_count}"
    return ok(
        "files", f"{what}, content {artifact.content_digest[:_SHORT]}{label(target, expected)}"
    )


def _recipe(case: ShardCase) -> Finding:
    question, pinned = case.question, _had(case.pinned)
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
    recipe, selection = _had(case.recipe), _had(case.selection)
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
    case.backend = backend
    case.context = CapabilityContext(backend, selection, recipe, case.manifest, device)
    if backend.synthetic is not False:
        return warning(
            "backend",
            f"{recipe.backend_id} on {device} is synthetic: it computes no model",
            "fine for tests; nothing it does certifies a recipe",
        )
    return ok("backend", f"{recipe.backend_id} on {device}")


def _load(case: ShardCase) -> Finding:
    context = _had(case.context)
    selection = context.selection
    case.shard = _had(case.backend).load(
        case.question.files, start=selection.start, end=selection.end, device=context.device
    )
    size = case.shard.memory_bytes / 2**20
    return ok("load", f"layers [{selection.start}, {selection.end}) in {size:,.1f} MiB")


def _version(case: ShardCase) -> Finding:
    recipe = _had(case.recipe)
    case.differences = differences(recipe, _had(case.backend), _had(case.shard))
    if wrong := [one for one in case.differences if one.axis == RUNTIME]:
        return failed(
            "version",
            "; ".join(one.describe() for one in wrong),
            f"install {recipe.backend_id} {recipe.runtime_version}, or declare the runtime_version "
            "that runs: it is another recipe then",
        )
    return ok("version", f"{recipe.runtime_version} runs, as declared")


def _layout(case: ShardCase) -> Finding:
    if wrong := [one for one in case.differences if one.axis != RUNTIME]:
        return failed(
            "layout",
            "; ".join(one.describe() for one in wrong),
            "configure the backend as declared, or declare what runs (`meshnet node manifest` writes "
            "it): it is another recipe then",
        )
    return ok("layout", "every axis runs as declared")


def _forward(case: ShardCase) -> Finding:
    context, selection = _had(case.context), _had(case.selection)
    is_whole = (selection.start, selection.end) == (0, selection.artifact.layer_count)
    recorded = case.target.recorded_output(context.recipe) if case.target and is_whole else None
    case.measured = measured = measure(
        _had(case.shard), selection.start, selection.end, recorded=recorded
    )
    if measured.status != "passed":
        return failed("forward", "; ".join(measured.faults), _NUMBERS)
    equal = ", as the target records" if recorded is not None else ""
    return ok(
        "forward",
        f"{measured.tokens} positions in {measured.duration_ms} ms, finite and twice the same; "
        f"output {measured.output_digest[:_SHORT]}{equal}",
    )


def _had(value: _T | None) -> _T:
    """What an earlier check left; `needs` says which one that is."""
    if value is None:
        raise LookupError("a check was made before those that it needs")
    return value


_REPORT_IT = "ask whoever makes the backend"
_NUMBERS = (
    "do not serve with it: other builds, drivers or files are to be tried, and whoever makes the "
    "backend asked"
)

SHARD_CHECKS: tuple[Check[ShardCase], ...] = (
    Check("files", _files, "see that the files can be read"),
    Check("recipe", _recipe, "see that the manifest can be read", needs=("files",)),
    Check(
        "backend",
        _backend,
        "install the backend's package, whole, beside this one",
        needs=("recipe",),
    ),
    Check(
        "load",
        _load,
        "see that the backend knows the architecture, and that there is memory for the layers",
        needs=("backend",),
    ),
    Check("version", _version, _REPORT_IT, needs=("load",)),
    Check("layout", _layout, _REPORT_IT, needs=("load",)),
    Check("forward", _forward, _NUMBERS, needs=("load",)),
)
