"""`meshnet node doctor` and `meshnet node manifest`: what is declared, and whether it is what runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from cyclopts import Group, Parameter

from meshnet_cli import look
from meshnet_cli.errors import FAILED, OK, CliError
from meshnet_cli.logs import show_backend_faults
from meshnet_cli.options import (
    NODE,
    OUTPUT,
    SHARD,
    TLS,
    WHERE,
    NodeDir,
    Output,
    ShardChoice,
    TlsChoice,
    Where,
)
from meshnet_cli.output import answer, console, line, note
from meshnet_cli.proving import Follow, plain, question_of

if TYPE_CHECKING:
    from rich.console import Console

    from meshnet_cli.profile import Settings
    from meshnet_node.doctor import Diagnosis, MachineCase, ShardQuestion
    from meshnet_node.session.transport import Tls

_FILES = Group("What is written", sort_key=3)


def doctor(
    files: Annotated[list[Path], Parameter(help="A model file, or every part of a split one.")],
    /,
    *,
    directory: NodeDir = None,
    endpoint: Annotated[
        str | None, Parameter(group=NODE, help="Where peers reach it: grpc://host:port.")
    ] = None,
    listen: Annotated[
        str | None,
        Parameter(group=NODE, help="Where that arrives here, host:port, if not at its address."),
    ] = None,
    declared_host: Annotated[
        str | None, Parameter(group=NODE, help="What the machine is called, if not by its id.")
    ] = None,
    identity: Annotated[
        Path | None, Parameter(group=_FILES, help="Write the identity block here.")
    ] = None,
    report: Annotated[
        Path | None, Parameter(group=_FILES, help="Write the capability report here.")
    ] = None,
    json: Annotated[bool, Parameter(help="The same as -o json.")] = False,
    shard: ShardChoice = SHARD,
    tls: TlsChoice = TLS,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> int:
    r"""Prove that this machine computes what it declares, and find what would go wrong.

    The layers are loaded and a bounded real forward is pushed through them: its numbers must be finite,
    of the right shapes, the same twice, and, of a whole model, those that the target records. What runs
    is compared with the declared recipe, axis by axis. Clock, tracker, endpoint, key, host and disk are
    looked at too. Every failure comes with what to do; exit code 1 when there is one. Nothing is changed
    but the cache of digests and the files that are named to be written, which `meshnet node register`
    takes.

    ```
    meshnet node doctor model.gguf --manifest recipes.toml --layers 0:9 \
        --endpoint grpc://10.0.0.7:7001 \
        --identity first.json --report report.json
    ```
    """
    from meshnet_cli.profile import settle
    from meshnet_cli.reaching import read_tls
    from meshnet_node.doctor import MachineCase

    if json:
        output = Output(format="json")
    show_backend_faults()
    settings = settle(where)
    question = question_of(files, shard)
    machine = MachineCase(directory=settings.node_at(directory), declared_host=declared_host)
    follow = Follow(console() if output.format == "table" else None)
    diagnosis = _diagnose(
        question, machine, settings, _ReachedAt(endpoint, listen, read_tls(tls)), follow
    )
    _write(diagnosis, identity, report)
    answer(
        output,
        {
            "passed": diagnosis.passed,
            "verdict": diagnosis.verdict,
            "findings": diagnosis.findings,
            "identity": diagnosis.identity and diagnosis.identity.to_dict(with_fingerprint=True),
            "report": diagnosis.report,
        },
        lambda screen: _show_verdict(screen, diagnosis),
        rows=diagnosis.findings,
    )
    return OK if diagnosis.passed else FAILED


def manifest(
    files: Annotated[list[Path], Parameter(help="A model file, or every part of a split one.")],
    /,
    *,
    backend: Annotated[str, Parameter(help="The backend that is to run it.")],
    device: Annotated[
        str | None, Parameter(help="What computes. Default: the backend's best.")
    ] = None,
    recipe_id: Annotated[str, Parameter(help="What the recipe is called.")] = "default",
    recipe_version: Annotated[str, Parameter(help="Its version.")] = "1",
    catalogue_version: Annotated[str, Parameter(help="The version of your recipes.")] = "1",
    tokenizer_revision: Annotated[
        str | None, Parameter(help="The tokenizer's digest, if the files hold none.")
    ] = None,
    destination: Annotated[
        Path | None, Parameter(name="--output", help="Where to write it. Default: shown only.")
    ] = None,
    overwrite: Annotated[bool, Parameter(help="Write over a manifest that is there.")] = False,
    output: Output = OUTPUT,
) -> None:
    r"""Propose a recipe for a model and a backend, as a manifest.

    The files decide some axes of the recipe; for the others the backend loads one layer and reports what
    it runs. Read it before you use it: the manifest is your declaration, and the doctor holds against it
    whatever runs later.

    ```
    meshnet node manifest model.gguf --backend reference-numpy \
        --output recipes.toml
    ```
    """
    from meshnet_node.doctor.declare import observed_recipe
    from meshnet_node.recipe_manifest import render, write_manifest

    if destination is not None and destination.exists() and not overwrite:
        raise CliError(
            f"{destination}: it exists already",
            "name another with --output, or write over it with --overwrite",
        )
    recipe = observed_recipe(
        files,
        backend,
        labels=(recipe_id, recipe_version, catalogue_version),
        device=device,
        tokenizer_revision=tokenizer_revision,
    )
    if destination is not None:
        write_manifest(destination, (recipe,))

    def people(screen: "Console") -> None:
        screen.out(render((recipe,)), end="", highlight=False)
        if destination is not None:
            note(f"written to {destination}")

    answer(output, recipe.to_dict(), people)


class _ReachedAt(NamedTuple):
    """Where peers reach the node, and where on this machine that arrives."""

    endpoint: str | None
    listen: str | None
    tls: "Tls | None"


def _diagnose(
    question: "ShardQuestion",
    machine: "MachineCase",
    settings: "Settings",
    reached_at: "_ReachedAt",
    follow: Follow,
) -> "Diagnosis":
    """Make all checks. The realm's come last: its connection would not outlast a long load."""
    import anyio

    from meshnet_node.doctor import examine_machine, examine_shard, joined

    proven = examine_shard(question, telling=follow)
    fit = examine_machine(machine, telling=follow)
    standing = anyio.run(_examine_realm, machine, settings, reached_at, follow)
    return joined(proven, fit, standing)


async def _examine_realm(
    machine: "MachineCase", settings: "Settings", reached_at: "_ReachedAt", follow: Follow
) -> "Diagnosis":
    from meshnet_node.doctor import RealmCase, examine_realm
    from meshnet_node.doctor.asking import asking
    from meshnet_node.key_file import read_key_file

    try:
        key = read_key_file(machine.directory.key_file)
    except (OSError, ValueError):  # the check of the credentials has said so
        key = None
    async with asking(
        RealmCase(node=None, endpoint=reached_at.endpoint),
        server=settings.server,
        realm=settings.realm,
        key=key,
        listen=reached_at.listen,
        tls=reached_at.tls,
    ) as case:
        return await examine_realm(case, telling=follow)


def _write(diagnosis: "Diagnosis", identity: Path | None, report: Path | None) -> None:
    """Write what a registration takes, where it was asked for and there is any."""
    from meshnet_node.files import replace_file

    proven = diagnosis.report
    if proven is None or diagnosis.identity is None:
        if identity is not None or report is not None:
            note("no identity and no report were written: the shard was not loaded")
        return
    if identity is not None:
        block = diagnosis.identity.to_dict(with_fingerprint=True)
        replace_file(identity, msgspec.json.format(msgspec.json.encode(block)) + b"\n")
    if report is not None:
        replace_file(report, msgspec.json.format(proven.to_json()) + b"\n")


def _show_verdict(screen: "Console", diagnosis: "Diagnosis") -> None:
    glyph, colour = look.FINDINGS["ok" if diagnosis.passed else "failed"]
    line(screen, plain(f"{glyph} ", colour), diagnosis.verdict)
