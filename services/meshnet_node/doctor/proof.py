"""The proof that a backend computes one context: loaded, compared, computed with, and reported.

    load       do the layers load, from files that keep still?
    version    is the running version the declared one?
    layout     is everything else that runs as declared, now that the backend has settled it?
    text       does a prompt become tokens where it goes in, and a token text where it comes out?
    forward    does a bounded real forward give the numbers it must?

`probe_capability` is the only way to a report in production. The report speaks of every finding, and
passes only if none failed; it is an `error` when no forward could be judged. A backend is somebody
else's code: whatever it raises or returns ends in a finding. Only what stops the process or the task
(Ctrl-C, cancellation) goes through. There is no bound on time: how long a load may take only its owner
knows.

Files are hashed first and loaded after. So `stamps` hold what they were before either, and the links
that lead to them: who lets a link point elsewhere and then back makes another link. One that has changed
after the load, or after the forward, as a backend may read only then, fails it. What comes later is not
seen: a backend that maps its files, and goes on reading them while it serves, computes with whatever is
written into them then. Nor is a write through a shared page that is mapped and dirty already: that moves
no time before the page is written back.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from meshnet_node.backends import Backend, LoadedShard, NoTokenizer
from meshnet_node.capability import CapabilityContext, CapabilityReport, report_for
from meshnet_node.doctor.check import Check, Silent, Telling, had, make_checks
from meshnet_node.doctor.finding import Finding, failed, ok, skipped, warning
from meshnet_node.foreign import cut, fault_text, kind_of
from meshnet_node.pin.gguf_file import Stamp
from meshnet_node.probe import Measured, measure
from meshnet_node.running import RUNTIME, Difference, differences

_log = logging.getLogger(__name__)
_SHORT = 12

Stamps = Mapping[Path, tuple[Stamp, ...] | None]
"""What files, after the links to each, were at one time; None for one that could not be looked at."""


def stamps_of(files: Iterable[Path]) -> Stamps:
    """What the files are now."""
    return {path: _stamps(path) for path in files}


def _stamps(path: Path) -> tuple[Stamp, ...] | None:
    try:
        file = path.stat()  # before its links: this finds out a ring of them
        return (*(Stamp.of(link.lstat()) for link in _links(path)), Stamp.of(file))
    except OSError:
        return None


def _links(path: Path) -> Iterator[Path]:
    """Every symbolic link on the way to a file, in the order in which they are followed."""
    path = path.absolute()
    for place in (*reversed(path.parents), path):
        if place.is_symlink():
            yield place
            yield from _links(place.parent / place.readlink() / path.relative_to(place))
            return


class Proof:
    """What the checks of one context learn, each for the next. Made by `proven`."""

    def __init__(
        self,
        context: CapabilityContext,
        files: Sequence[Path],
        stamps: Stamps,
        recorded: str | None,
    ) -> None:
        self.context = context
        self.files = files
        self.stamps = stamps
        self.recorded = recorded
        self.findings: tuple[Finding, ...] = ()
        self.shard: LoadedShard | None = None
        self.differences: tuple[Difference, ...] | None = None
        self.measured = Measured("error")

    @property
    def backend(self) -> Backend:
        """The backend, of which a report needs less than a load."""
        return cast("Backend", self.context.backend)

    def report(self, *, validated_at: float) -> CapabilityReport:
        """What may be registered with, if it passed. Its texts are such as a fact can hold."""
        faults = [f"{one.name}: {one.found}" for one in self.findings if one.status == "failed"]
        measured = self.measured
        return report_for(
            msgspec.structs.replace(self.context, backend=_Stated.of(self.context)),
            status="failed" if faults and measured.status == "passed" else measured.status,
            validated_at=validated_at,
            tokens=measured.tokens,
            duration_ms=measured.duration_ms,
            output_digest=measured.output_digest,
            diagnostics=tuple(map(cut, faults)),
        )

    def close(self, telling: Telling) -> None:
        """Give the layers back; a backend that cannot is found out."""
        try:
            if self.shard is not None:
                self.shard.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the backend is somebody else's
            _log.debug("giving the layers back", exc_info=error)
            finding = failed("close", fault_text(error), REPORT_IT)
            self.findings = (*self.findings, finding)
            telling.finds(finding)


class _Stated(Struct, frozen=True):
    """The backend as the report names it: what it says was asked once. Of doubt, synthetic."""

    backend_id: str
    synthetic: bool

    @classmethod
    def of(cls, context: CapabilityContext) -> "_Stated":
        try:
            synthetic = context.backend.synthetic is not False
        except (Exception, SystemExit):  # noqa: BLE001 - see the module: a backend may do anything
            synthetic = True
        return cls(context.recipe.backend_id, synthetic)


@contextmanager
def proven(
    context: CapabilityContext,
    *,
    files: Sequence[Path],
    stamps: Stamps | None = None,
    recorded: str | None = None,
    telling: Telling | None = None,
) -> Iterator[Proof]:
    """The proof of what `context` selects, made. Its layers stay loaded until it is left."""
    telling = telling or Silent()
    proof = Proof(context, files, stamps or stamps_of(files), recorded)
    try:
        proof.findings = make_checks(PROOF_CHECKS, proof, telling)
        yield proof
    finally:
        proof.close(telling)


def probe_capability(
    context: CapabilityContext,
    *,
    files: Sequence[Path],
    stamps: Stamps | None = None,
    recorded: str | None = None,
    telling: Telling | None = None,
    now: Callable[[], float] = time.time,
) -> CapabilityReport:
    """Load the layers that `context` selects from `files`, prove them, and report. Blocks.

    `stamps` are what the files were before they were hashed, by default what they are when this is
    called. `recorded` is the output digest that they must have, where one is known. A
    `CapabilityValidator` once its files are bound (`functools.partial`). The report is dated `now()`, at
    the end.
    """
    with proven(context, files=files, stamps=stamps, recorded=recorded, telling=telling) as proof:
        pass
    return proof.report(validated_at=now())


def _load(proof: Proof) -> Finding:
    selection = proof.context.selection
    proof.shard = proof.backend.load(
        proof.files, start=selection.start, end=selection.end, device=proof.context.device
    )
    if moved := _moved(proof):
        return failed("load", moved, _KEEP_STILL)
    size = proof.shard.memory_bytes / 2**20
    return ok("load", f"layers [{selection.start}, {selection.end}) in {size:,.1f} MiB")


def _version(proof: Proof) -> Finding:
    recipe = proof.context.recipe
    proof.differences = differences(recipe, proof.backend, had(proof.shard))
    if wrong := [one for one in proof.differences if one.axis == RUNTIME]:
        return failed(
            "version",
            "; ".join(one.describe() for one in wrong),
            f"install {recipe.backend_id} {recipe.runtime_version}, or declare the runtime_version "
            "that runs: it is another recipe then",
        )
    return ok("version", f"{recipe.runtime_version} runs, as declared")


def _layout(proof: Proof) -> Finding:
    if proof.differences is None:
        return skipped("layout", "the backend did not say what runs: see version")
    if wrong := [one for one in proof.differences if one.axis != RUNTIME]:
        return failed(
            "layout",
            "; ".join(one.describe() for one in wrong),
            "configure the backend as declared, or declare what runs (`meshnet node manifest` writes "
            "it): it is another recipe then",
        )
    return ok("layout", "every axis runs as declared")


def _text(proof: Proof) -> Finding:
    """The hop that holds layer 0 encodes a route's prompts, and the last one spells out its tokens."""
    selection, shard = proof.context.selection, had(proof.shard)
    met = []
    if selection.start == 0:
        try:
            ids: object = shard.encode(_PROMPT)
        except NoTokenizer as error:
            return warning("text", f"no tokenizer here: {error}", _NO_PROMPTS)
        if not _are_ids(ids, shard.vocabulary):
            found = f"encode gave {kind_of(ids)} for {_PROMPT!r}, expected ids of the vocabulary"
            return failed("text", found, REPORT_IT)
        met.append("prompts are encoded")
    if selection.end == selection.artifact.layer_count:
        try:
            piece: object = shard.decode(0)
        except NoTokenizer as error:
            return warning("text", f"no tokenizer here: {error}", _NO_SPELLING)
        if type(piece) is not bytes:
            return failed("text", f"decode gave {kind_of(piece)}, expected bytes", REPORT_IT)
        met.append("tokens spelled out")
    return ok("text", " and ".join(met) or "layers in the middle meet none")


def _are_ids(ids: object, vocabulary: int) -> bool:
    """Whether they are one token id or more."""
    return (
        isinstance(ids, Sequence)
        and len(ids) > 0
        and all(type(one) is int and 0 <= one < vocabulary for one in ids)
    )


def _forward(proof: Proof) -> Finding:
    selection = proof.context.selection
    proof.measured = measured = measure(
        had(proof.shard), selection.start, selection.end, recorded=proof.recorded
    )
    if measured.status != "passed":
        return failed("forward", "; ".join(measured.faults), _NUMBERS)
    if moved := _moved(proof):
        return failed("forward", moved, _KEEP_STILL)
    equal = ", as the target records" if proof.recorded is not None else ""
    return ok(
        "forward",
        f"{measured.tokens} positions in {measured.duration_ms} ms, finite and twice the same; "
        f"output {measured.output_digest[:_SHORT]}{equal}",
    )


def _moved(proof: Proof) -> str:
    """Which files are no longer what they were before they were hashed; empty if none."""
    now = stamps_of(proof.stamps)
    return "; ".join(
        f"{path} changed while it was being proven"
        for path, before in proof.stamps.items()
        if now[path] != before
    )


FOR_ITS_MAKER = "whoever makes it finds where to look in docs/how-to/add-a-backend.md"
REPORT_IT = f"that is the backend's own fault: {FOR_ITS_MAKER}, under 'When the doctor objects'"
_NUMBERS = (
    "do not serve with it. Another build of the backend, another driver or the files got anew may "
    f"help; {FOR_ITS_MAKER}, under 'When the doctor objects'"
)

_PROMPT = "a mesh of shards"
_GET_TOKENIZER = "for text get files with a tokenizer that the backend knows"
_NO_PROMPTS = (
    "token ids work, so `meshnet node certify` does; prompts do not, so `meshnet generate` and `certify "
    f"--prompt` fail over this shard; {_GET_TOKENIZER}"
)
_NO_SPELLING = f"tokens come back all the same, without their text; {_GET_TOKENIZER}"
_KEEP_STILL = "see that nothing writes to it or puts another in its place, and run this again"

PROOF_CHECKS: tuple[Check[Proof, Finding], ...] = (
    Check(
        "load",
        _load,
        "see that the backend knows the architecture, and that there is memory for the layers",
    ),
    Check("version", _version, REPORT_IT, needs=("load",)),
    Check("layout", _layout, REPORT_IT, needs=("load",)),
    Check("text", _text, REPORT_IT, needs=("load",)),
    Check("forward", _forward, _NUMBERS, needs=("load",)),
)
