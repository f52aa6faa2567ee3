"""`meshnet node`: what the owner of a machine does. What is kept in a node's directory:

node.key      the node's seed, mode 0600
enrol.json    the request that an operator enrols it with
boot          the boot that registered last: a UUID, new for every start of the serving process
"""

import re
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Group, Parameter
from msgspec import Struct

from meshnet_cli import look
from meshnet_cli.errors import FAILED, OK, USAGE, CliError
from meshnet_cli.host_id import host_of
from meshnet_cli.key_files import keep_key, new_key, read_key, write_new
from meshnet_cli.options import OUTPUT, WHERE, Output, Where
from meshnet_cli.output import answer, line, pairs
from meshnet_cli.profile import settle
from meshnet_cli.progress import progress
from meshnet_cli.publishing import checked, naming_faults, publish, read_limited
from meshnet_events.enrolment import sign_request
from meshnet_events.envelope import canonical
from meshnet_events.facts import Capability, ShardRegistered, ShardWithdrawn
from meshnet_node.files import replace_file
from meshnet_tracker.registry.eligibility import judge

if TYPE_CHECKING:
    from rich.console import Console

    from meshnet_node.capability import CapabilityReport
    from meshnet_node.pin import Pinned
    from meshnet_node.recipe_identity import ShardIdentity
    from meshnet_node.targets import TargetFacts

app = App(
    name="node",
    help="""Run a node: make its key, pin model files, register shards and withdraw them.

A node is one key. An operator enrols it once; then it may register shards, each with the identity of
what it loads and a fresh report that it can compute it.
""",
)

Directory = Annotated[
    Path | None,
    Parameter(
        name="--dir",
        env_var="MESHNET_NODE_DIR",
        help="The node's directory. Default: the profile's.",
    ),
]
ShardId = Annotated[str, Parameter(help="Names the shard among this node's: [a-z0-9-]{1,32}.")]


class NewNode(Struct, frozen=True):
    """What `init` made."""

    node: str
    directory: str
    request: str


class Registered(Struct, frozen=True):
    """A registration and the registry's verdict on it."""

    node: str
    shard_id: str
    boot_id: str
    recipe_key: str | None
    recipe_status: str
    status: str
    eligible_to_serve: bool
    eligible_to_certify: bool
    reasons: tuple[str, ...]
    refusal: str | None
    refusal_detail: str
    sequence: int
    digest: str


class Withdrawn(Struct, frozen=True):
    """A withdrawal and what the claim is now."""

    node: str
    shard_id: str
    boot_id: str
    status: str
    sequence: int


@app.command
def init(
    *,
    directory: Directory = None,
    label: Annotated[str, Parameter(help="What the node proposes to be called.")] = "",
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> None:
    """Make a node's key, and the request that an operator enrols it with.

    The key is what every fact of this node is signed with. It stays in the directory, readable by
    its owner alone; the request holds no secret and proves that its sender has the key. A key that
    exists is never written over.

    ```
    meshnet node init --dir ./node --label rack-2
    ```
    """
    folder = _directory(directory, where)
    key = new_key()
    request = folder / "enrol.json"
    try:
        content = sign_request(key, label=label, time_ms=time.time_ns() // 1_000_000)
    except ValueError as error:
        raise CliError(f"--label: {error}", "nothing was made", code=USAGE) from error
    keep_key(folder / "node.key", key)
    try:
        write_new(request, content)
    except FileExistsError:
        raise CliError(
            f"{request} exists; it is of another key", "remove it, and the new key"
        ) from None

    def people(screen: "Console") -> None:
        pairs(screen, (("node key", key.public), ("directory", str(folder))))
        screen.print("An operator enrols it with:")
        line(screen, f"  meshnet admin node enrol {request}")

    answer(output, NewNode(key.public, str(folder), str(request)), people)


_CUT = Group("Cutting", sort_key=1)
_LOCK = Group("Locking a target", sort_key=2)


@app.command
def pin(
    files: Annotated[list[Path], Parameter(help="A model file, or every part of a split one.")],
    /,
    *,
    artifact_id: Annotated[
        str | None, Parameter(help="Where it came from, like acme/model-gguf. Default: its name.")
    ] = None,
    revision: Annotated[
        str | None, Parameter(help="The commit it came from. Default: its own digest.")
    ] = None,
    cache: Annotated[
        bool, Parameter(negative="--no-cache", help="Whether digests seen before are trusted.")
    ] = True,
    layers: Annotated[
        str | None, Parameter(group=_CUT, help="Cut layers A:B, the last not included.")
    ] = None,
    destination: Annotated[
        Path | None,
        Parameter(
            name="--output",
            group=_CUT,
            help="Where the cut is written. Default: NAME.layers-A-B.gguf in this folder.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        Parameter(group=_LOCK, help="Lock this target to these files; a new name makes a new one."),
    ] = None,
    output: Output = OUTPUT,
) -> None:
    """Turn real model files into an identity.

    What is written in the files decides which artifact a shard loads and some axes of its recipe;
    the other axes are the node's to declare. `--layers` writes a file with just those layers, bound
    to its source. `--target` writes a lock, which others check their files against; under a name that
    no target has yet, it makes one.

    ```
    meshnet node pin model-00001-of-00002.gguf model-00002-of-00002.gguf -o json
    meshnet node pin model.gguf --layers 0:9 --output first.gguf
    ```
    """
    from meshnet_node.pin import cut, default_destination
    from meshnet_node.pin import pin as pin_files

    if layers is not None:
        span = _range(layers)
        if target is not None:
            raise CliError("--target needs whole files: no --layers", code=USAGE)
        if artifact_id is not None or revision is not None:
            raise CliError(
                "a cut keeps its source's labels", "pin the cut itself to label it", code=USAGE
            )
        destination = destination or default_destination(files, span)
        with progress("hashing", "bytes") as meter:
            pinned = cut(files, layers=span, destination=destination, cache=cache, progress=meter)
        answer(output, pinned.to_dict(), lambda screen: _show_pinned(screen, pinned, None))
        return
    if destination is not None:
        raise CliError("--output is where a cut is written: it needs --layers", code=USAGE)
    if target is not None and revision is None:
        raise CliError("--target needs --revision", code=USAGE)
    known = _known_target(target)
    with progress("hashing", "bytes") as meter:
        pinned = pin_files(
            files,
            artifact_id=artifact_id or (known.repository if known else None),
            revision=revision,
            cache=cache,
            progress=meter,
        )
    locked = _lock(target, known, pinned) if target is not None else None
    answer(output, pinned.to_dict(), lambda screen: _show_pinned(screen, pinned, locked))


@app.command
def register(
    *,
    identity: Annotated[Path, Parameter(help="The identity block, JSON.")],
    report: Annotated[Path, Parameter(help="The doctor's capability report, JSON.")],
    endpoint: Annotated[str, Parameter(help="Where peers reach it: grpc://host:port or grpcs://…")],
    shard_id: ShardId = "main",
    device: Annotated[
        str | None, Parameter(help="What computes it, like cpu. Default: the report's.")
    ] = None,
    declared_host: Annotated[
        str | None, Parameter(help="Call the machine this instead of by its /etc/machine-id.")
    ] = None,
    boot: Annotated[str | None, Parameter(help="The boot that serves it: a UUID.")] = None,
    new_boot: Annotated[
        bool, Parameter(help="A process has started anew: its older claims end.")
    ] = False,
    directory: Directory = None,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> int:
    r"""Register a shard, with the proof that this machine can compute it.

    The proof is checked here first, by the rule that the registry applies again: it must be fresh,
    passed, and about exactly what is registered. A bad one is refused and nothing is published.
    Afterwards the registry is asked for its verdict. Exit code 1 when that is a refusal.

    The identity block has `schema_version` 1, `artifact` and `recipe` (what `meshnet node pin` prints,
    with the axes that it cannot know), `shard_start` and `shard_end`; its fingerprint is derived.
    The report is what `meshnet node doctor` writes; the last three members may be left out, and a
    `passed` may stand beside `status` when the two agree:

    ```
    {"model": {"model_id": "acme/model", "model_artifact_digest": "<64 hex>"},
     "shard": {"start": 0, "end": 9},
     "recipe": {"recipe_id": "dense", "recipe_version": "1",
                "runtime_recipe_digest": "<64 hex>"},
     "backend": {"backend_id": "llama.cpp", "device": "cpu"},
     "status": "passed", "validated_at": 1790000000.5,
     "tokens": 4, "duration_ms": 812, "output_digest": "<64 hex>",
     "synthetic": false, "diagnostics": []}
    ```

    For example:

    ```
    meshnet node register --identity first.json --report report.json \
        --endpoint grpc://10.0.0.7:7001 --new-boot
    ```
    """
    from meshnet_node.admission import AdmissionRequirement, CapabilityReport, admit

    settings = settle(where)
    realm = settings.need_realm()
    shard = _read_identity(identity)
    proof = CapabilityReport.from_json(read_limited(report, "capability report"))
    device = device or proof.backend.device
    admit(AdmissionRequirement.for_identity(shard, device=device), proof)
    folder = _directory(directory, where)
    key = read_key(folder / "node.key", "node key")
    with naming_faults(ShardRegistered):
        fact = ShardRegistered(
            boot_id=_boot(folder, boot, is_new=new_boot),
            capability=_capability(report, proof),
            device=device,
            endpoint=endpoint,
            host=host_of(realm, declared_host),
            identity=msgspec.Raw(canonical(shard.to_dict(with_fingerprint=True))),
            shard_id=shard_id,
        )
    checked(fact)
    replace_file(folder / "boot", f"{fact.boot_id}\n".encode())
    published, known = publish(where, key, fact)
    state = known.state
    claim = state.claims[key.public][shard_id]
    verdict = judge(state, claim)
    recipe = state.recipes.get(claim.recipe_key or "")
    document = Registered(
        node=key.public,
        shard_id=shard_id,
        boot_id=fact.boot_id,
        recipe_key=claim.recipe_key,
        recipe_status=recipe.status if recipe else "unknown",
        status=claim.status,
        eligible_to_serve=verdict.to_serve,
        eligible_to_certify=verdict.to_certify,
        reasons=verdict.reasons,
        refusal=claim.refusal,
        refusal_detail=claim.refusal_detail,
        sequence=published.sequence,
        digest=published.digest,
    )
    answer(output, document, lambda screen: _show_registered(screen, document))
    return OK if claim.status == "live" else FAILED


@app.command
def withdraw(
    *,
    shard_id: ShardId = "main",
    reason: Annotated[str, Parameter(help="Why, for whoever reads the log.")] = "",
    boot: Annotated[
        str | None, Parameter(help="The boot that registered it. Default: the last one here.")
    ] = None,
    directory: Directory = None,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> None:
    """Take a shard back: no route uses it from now on.

    Withdraw before a machine goes, and all of a node's shards before it moves to another machine:
    a second host that speaks with the same key while a claim is live looks like a stolen key.

    ```
    meshnet node withdraw --reason "maintenance"
    ```
    """
    folder = _directory(directory, where)
    key = read_key(folder / "node.key", "node key")
    with naming_faults(ShardWithdrawn):
        fact = ShardWithdrawn(
            boot_id=_boot(folder, boot, is_new=False), reason=reason, shard_id=shard_id
        )
    published, known = publish(where, key, fact)
    claim = known.state.claims.get(key.public, {}).get(shard_id)
    status = claim.status if claim else "unknown"
    document = Withdrawn(key.public, shard_id, fact.boot_id, status, published.sequence)

    def people(screen: "Console") -> None:
        line(
            screen, f"stored at sequence {published.sequence}; {shard_id} is ", look.status(status)
        )

    answer(output, document, people)


def _known_target(name: str | None) -> "TargetFacts | None":
    """What the target of this name should be; None when there is none, or no name."""
    from meshnet_node.targets import UnknownTarget, load_target_facts

    try:
        return None if name is None else load_target_facts(name)
    except UnknownTarget:
        return None


def _lock(name: str, known: "TargetFacts | None", pinned: "Pinned") -> Path:
    """Lock a target to what was pinned, a new one if it is not known; where the lock is."""
    from meshnet_node.targets import target_directory, write_locked_target

    path = target_directory() / f"{name}.json"
    write_locked_target(path, pinned.lock(known or pinned.target_facts(name)))
    return path


def _directory(directory: Path | None, where: Where) -> Path:
    return directory or settle(where).node_directory


def _read_identity(path: Path) -> "ShardIdentity":
    """The identity in a file; the message of what is wrong names the file and the member."""
    from meshnet_node.recipe_identity import RecipeIdentityError, ShardIdentity

    try:
        return ShardIdentity.from_dict(msgspec.json.decode(read_limited(path, "identity block")))
    except msgspec.MsgspecError as error:
        raise CliError(f"{path} is no identity block: {error}", _HOW_TO_IDENTIFY) from error
    except RecipeIdentityError as error:
        raise CliError(f"{path}: {error}", _HOW_TO_IDENTIFY) from error


_HOW_TO_IDENTIFY = "`meshnet node register --help` says what it holds; nothing was published"


def _capability(path: Path, proof: "CapabilityReport") -> Capability:
    try:
        return proof.to_fact()
    except ValueError as error:
        raise CliError(f"{path}: {error}", "run `meshnet node doctor` again") from error


def _boot(folder: Path, named: str | None, *, is_new: bool) -> str:
    """The boot that is meant: the named one, a new one, or the one that registered last."""
    if named is not None and is_new:
        raise CliError("--boot and --new-boot exclude each other", code=USAGE)
    if named is not None:
        return named
    kept = folder / "boot"
    if not is_new and kept.exists():
        return kept.read_text(encoding="ascii", errors="replace").strip()
    return str(uuid.uuid4())


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text)
    if found is None:
        raise CliError(
            f"not a range of layers: {text[:40]!r}", "expected A:B, like 0:9", code=USAGE
        )
    return int(found[1]), int(found[2])


def _show_pinned(screen: "Console", pinned: "Pinned", locked: Path | None) -> None:
    artifact = pinned.artifact
    binding = artifact.derived_from
    pairs(
        screen,
        (
            ("artifact", artifact.artifact_id),
            ("revision", artifact.revision),
            ("architecture", artifact.architecture),
            ("layers", str(artifact.layer_count)),
            ("cut", look.layers(binding.shard_start, binding.shard_end) if binding else ""),
            ("content", artifact.content_digest),
            ("cut from", binding.source_artifact_digest if binding else ""),
            ("architecture digest", artifact.architecture_digest),
            ("artifact digest", artifact.model_artifact_digest),
            *pinned.recipe_fields.items(),
            *((file.name, f"{file.size_bytes:,} bytes  {file.sha256}") for file in pinned.files),
            ("locked in", str(locked) if locked else ""),
        ),
    )


def _show_registered(screen: "Console", document: Registered) -> None:
    line(
        screen,
        f"stored at sequence {document.sequence}; {document.shard_id} is ",
        look.status(document.status),
    )
    pairs(
        screen,
        (
            ("node", document.node),
            ("boot", document.boot_id),
            ("recipe", document.recipe_key or ""),
            ("recipe is", look.status(document.recipe_status)),
            ("may serve", "yes" if document.eligible_to_serve else "no"),
            ("may certify", "yes" if document.eligible_to_certify else "no"),
            ("because", ", ".join(document.reasons)),
            ("refused", document.refusal or ""),
            ("", document.refusal_detail),
        ),
    )
