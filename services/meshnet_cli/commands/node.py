"""`meshnet node`: what the owner of a machine does, in the node's directory (`NodeDirectory`)."""

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
from cyclopts import App, Parameter
from msgspec import Struct

from meshnet_bus.asker import QueryRefused
from meshnet_bus.client import Unreachable
from meshnet_cli import look
from meshnet_cli.commands.certify import certify
from meshnet_cli.commands.doctor import doctor, manifest
from meshnet_cli.commands.pin import pin
from meshnet_cli.commands.serve import serve
from meshnet_cli.commands.status import status
from meshnet_cli.driving import asking
from meshnet_cli.errors import FAILED, NOT_FOUND, OK, USAGE, CliError
from meshnet_cli.key_files import keep_key, new_key, read_node_key, write_new
from meshnet_cli.options import OUTPUT, WHERE, NodeDir, Output, Where
from meshnet_cli.output import NOTHING_CHANGED, answer, line, note, pairs
from meshnet_cli.profile import Settings, settle
from meshnet_cli.publishing import naming_faults, publish_as_node, source_of
from meshnet_cli.reaching import parse_endpoint
from meshnet_cli.remedies import enrol, reinstate
from meshnet_cli.state_source import load
from meshnet_events.answers import ClockAnswer
from meshnet_events.enrolment import sign_request
from meshnet_events.envelope import MAX_BODY
from meshnet_events.facts import ShardRegistered, ShardWithdrawn
from meshnet_events.queries import ClockQuery
from meshnet_events.reasons import NOT_ENROLLED, SUSPENDED
from meshnet_node.directory import NodeDirectory
from meshnet_node.files import read_file
from meshnet_node.host import host_of
from meshnet_tracker.registry.eligibility import judge

if TYPE_CHECKING:
    from rich.console import Console

    from meshnet_node.capability import CapabilityReport
    from meshnet_node.recipe_identity import ShardIdentity

app = App(
    name="node",
    help="""Run a node: make its key, pin model files, prove shards, register and withdraw them.

A node is one key. An operator enrols it once; then it may register shards, each with the identity of
what it loads and a fresh report that it can compute it. The doctor writes both.

```
meshnet node init --label rack-2
```
""",
)
app.command(pin)
app.command(manifest)
app.command(doctor)
app.command(serve)
app.command(status)
app.command(certify)

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
    changed: bool
    sequence: int


@app.command
def init(
    *,
    directory: NodeDir = None,
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
    node = settle(where).node_at(directory)
    key = new_key()
    request = node.enrolment
    try:
        content = sign_request(key, label=label, time_ms=time.time_ns() // 1_000_000)
    except ValueError as error:
        raise CliError(f"--label: {error}", "nothing was made", code=USAGE) from error
    keep_key(node.key_file, key)
    try:
        write_new(request, content)
    except FileExistsError:
        raise CliError(
            f"{request} exists; it is of another key", "remove it, and the new key"
        ) from None

    def people(screen: "Console") -> None:
        pairs(screen, (("node key", key.public), ("directory", str(node.path))))
        screen.print("An operator enrols it with:")
        line(screen, f"  meshnet admin node enrol {request}")

    answer(output, NewNode(key.public, str(node.path), str(request)), people)


@app.command
def register(
    *,
    identity: Annotated[Path, Parameter(help="The identity block, JSON.")],
    report: Annotated[Path, Parameter(help="The capability report, JSON.")],
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
    directory: NodeDir = None,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> int:
    r"""Register a shard, with the proof that this machine can compute it.

    The proof is checked here first, by the rule that the registry applies again: it must be fresh, also
    by the broker's clock, passed, and about exactly what is registered. A bad one is refused and
    nothing is published. Afterwards the registry is asked for its verdict. Exit code 1 when that is a
    refusal.

    `meshnet node doctor --identity first.json --report report.json` writes both files. Runtimes that
    are not ours write them themselves.

    The identity block says what is loaded and how it is computed. `meshnet node pin -o json` prints
    `artifact` and the axes of `recipe` that the file decides; the others are yours to state. Its
    fingerprint is derived, and `docs/reference/identity.md` has every member:

    ```
    {"schema_version": 1, "shard_start": 0, "shard_end": 9,
     "artifact": {"artifact_id": "acme/model", "revision": "<commit>",
                  "content_digest": "<64 hex>", "architecture": "llama",
                  "architecture_digest": "<64 hex>", "layer_count": 18},
     "recipe": {"weight_quantization": "Q8_0", "activation_dtype": "bfloat16",
                "compute_dtype": "float32", "kv_dtype": "f16",
                "kv_layout": "uniform-512", "tokenizer_revision": "<64 hex>",
                "architecture_adapter": "llama", "backend_id": "llama.cpp",
                "runtime_version": "b7421", "boundary_schema_version": 1,
                "protocol_schema_version": 1, "recipe_id": "dense",
                "recipe_version": "1", "catalogue_version": "1"}}
    ```

    The report says that just this was computed here; `model_id` is the block's `artifact_id`. A report
    of other digests is refused with those that the block has. The last three members may be left out,
    and a `passed` may stand beside `status` when the two agree:

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
    from meshnet_events.admission import STALE
    from meshnet_node.admission import CapabilityAdmissionError
    from meshnet_node.registration import Offer, registration

    settings = settle(where)
    realm = settings.need_realm()
    parse_endpoint(endpoint)
    proof = _read_report(report)
    offer = Offer(shard_id, _read_identity(identity), proof, device or proof.backend.device)
    try:
        offer.admit()
    except CapabilityAdmissionError as refusal:
        if refusal.reason != STALE:  # whether it is too old, the policy in force says
            raise
    clock = anyio.run(_broker_clock, settings)
    offer.admit(clock)
    node = settings.node_at(directory)
    key = read_node_key(node)
    boot_id, host = _boot(node, boot, is_new=new_boot), host_of(realm, declared_host)
    with naming_faults(ShardRegistered):
        fact = registration(offer, boot_id=boot_id, endpoint=endpoint, host=host, broker=clock)
    published, known = publish_as_node(where, node, key, fact, remedies=_remedies(node, key.public))
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
    directory: NodeDir = None,
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
    node = settle(where).node_at(directory)
    key = read_node_key(node)
    remedies = _remedies(node, key.public)
    before = load(source_of(where)).state
    if shard_id not in before.claims.get(key.public, {}):
        row = before.nodes.get(key.public)
        may_speak = before.policy.enrolment == "open" or (row is not None and row.enrolled)
        raise CliError(
            f"this node registered no shard {shard_id!r}; nothing was published",
            "`meshnet shard list` shows every shard" if may_speak else remedies[NOT_ENROLLED],
            code=NOT_FOUND,
        )
    with naming_faults(ShardWithdrawn):
        fact = ShardWithdrawn(
            boot_id=_boot(node, boot, is_new=False), reason=reason, shard_id=shard_id
        )
    published, known = publish_as_node(where, node, key, fact, remedies=remedies)
    claim = known.state.claims.get(key.public, {}).get(shard_id)
    status = claim.status if claim else "unknown"
    changed = claim is not None and claim.ended_sequence == published.sequence
    document = Withdrawn(key.public, shard_id, fact.boot_id, status, changed, published.sequence)

    def people(screen: "Console") -> None:
        line(
            screen,
            f"stored at sequence {published.sequence}; {shard_id} is ",
            look.status(status, more="" if changed else NOTHING_CHANGED),
        )

    answer(output, document, people)


def _read(path: Path, what: str) -> bytes:
    """A file that goes into an event, and so is no larger than one."""
    return read_file(path, what, most_bytes=MAX_BODY)


def _read_identity(path: Path) -> "ShardIdentity":
    """The identity in a file; the message of what is wrong names the file and the member."""
    from meshnet_node.recipe_identity import RecipeIdentityError, ShardIdentity

    try:
        return ShardIdentity.from_dict(msgspec.json.decode(_read(path, "identity block")))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CliError(f"{path} is no identity block: {error}", _HOW_TO_IDENTIFY) from error
    except RecipeIdentityError as error:
        raise CliError(f"{path}: {error}", _HOW_TO_IDENTIFY) from error


async def _broker_clock(settings: Settings) -> ClockAnswer | None:
    """The broker's time; None where no tracker tells it. Raises Unreachable."""
    async with asking(settings) as asker:
        try:
            return await asker.ask(ClockQuery())
        except (QueryRefused, Unreachable) as error:
            note(f"the proof was judged by this machine's clock alone: {error}")
            return None


def _remedies(directory: NodeDirectory, node: str) -> dict[str, str]:
    """What to do about refusals that only an operator can lift."""
    return {
        NOT_ENROLLED: f"{enrol(directory)}; nothing was registered",
        SUSPENDED: reinstate(node),
    }


_HOW_TO_IDENTIFY = "`meshnet node register --help` says what it holds; nothing was published"


def _read_report(path: Path) -> "CapabilityReport":
    """The report in a file; the message of what is wrong names the file."""
    from meshnet_node.capability import CapabilityReport, CapabilityReportError

    try:
        return CapabilityReport.from_json(_read(path, "capability report"))
    except CapabilityReportError as error:
        raise CliError(f"{path}: {error}", _HOW_TO_IDENTIFY) from error


def _boot(directory: NodeDirectory, named: str | None, *, is_new: bool) -> str:
    """The boot that is meant: the named one, a new one, or the one that registered last."""
    if named is not None and is_new:
        raise CliError("--boot and --new-boot exclude each other", code=USAGE)
    if named is not None:
        return named
    last = None if is_new else directory.last_boot()
    return last or str(uuid.uuid4())


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
