"""`meshnet shard`: the newest registration of every node and shard id, ended and refused ones too."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from msgspec import Struct

from meshnet_auditor.replay import ClaimReport, report
from meshnet_cli import look
from meshnet_cli.claims import claims_table
from meshnet_cli.errors import FAILED, OK
from meshnet_cli.lookup import called, find_claim, find_node, find_recipe
from meshnet_cli.options import OUTPUT, SOURCE, Output, Source
from meshnet_cli.output import answer, footer, line, pairs
from meshnet_cli.registered import HeldFile, held_files
from meshnet_cli.state_source import load
from meshnet_tracker.registry.explain import why_claim, why_different

if TYPE_CHECKING:
    from rich.console import Console

app = App(
    name="shard",
    help="""See who holds which layers of what, and why a shard is not used.

```
meshnet shard list
```
""",
)


class Shards(Struct, frozen=True):
    """Claims, as of a sequence."""

    realm: str
    sequence: int
    shards: tuple[ClaimReport, ...]


class WhyNot(Struct, frozen=True):
    """One claim, and a sentence for each of its reasons: what happened, and what would change it."""

    realm: str
    sequence: int
    shard: ClaimReport
    why: tuple[str, ...]


class Difference(Struct, frozen=True):
    """One axis in which two shards differ."""

    reason: str
    detail: str


class Differences(Struct, frozen=True):
    """Why two shards may not compute together; nothing when they may.

    `files` are what they hold, of two shards of one recipe; null where no record of it was to be had.
    """

    realm: str
    sequence: int
    left: str
    right: str
    differences: tuple[Difference, ...]
    files: tuple[HeldFile, HeldFile] | None


@app.command(name="list")
def list_shards(
    *,
    recipe: Annotated[str | None, Parameter(help="Only of this recipe (8 characters).")] = None,
    node: Annotated[str | None, Parameter(help="Only of this node (label or key).")] = None,
    source: Source = SOURCE,
    output: Output = OUTPUT,
) -> None:
    """List shards with their layers and whether a route may use them.

    Ended and refused registrations stay listed: a node that is gone is not forgotten.

    ```
    meshnet shard list --recipe 17ae3860
    ```
    """
    known = load(source)
    state = known.state
    key = find_recipe(state, recipe).recipe_key if recipe else None
    owner = find_node(state, node).node if node else None
    claims = tuple(
        claim
        for claim in report(state).claims
        if key in {None, claim.recipe_key} and owner in {None, claim.node}
    )

    def people(screen: "Console") -> None:
        if claims:
            screen.print(claims_table(state, claims))
        else:
            screen.print("no shard is registered; `meshnet node register --help` says how")
        footer(screen, known.footer())

    answer(output, Shards(state.name, state.sequence, claims), people, rows=claims)


@app.command
def why_not(
    shard: Annotated[str, Parameter(help="NODE or NODE/SHARD; NODE is a label or a key.")],
    /,
    *,
    source: Source = SOURCE,
    output: Output = OUTPUT,
) -> int:
    """Say why a shard may not serve: every reason at once. Exit code 1 when it may not.

    ```
    meshnet shard why-not rack-2/main
    ```
    """
    known = load(source)
    state = known.state
    found = find_claim(state, shard)
    claim = next(
        row
        for row in report(state).claims
        if (row.node, row.shard_id) == (found.node, found.shard_id)
    )
    why = why_claim(state, found)

    def people(screen: "Console") -> None:
        from rich.padding import Padding

        word = look.claim_word(claim.status, claim.reasons)
        may = "may serve" if claim.eligible_to_serve else "may not serve"
        if claim.eligible_to_certify and not claim.eligible_to_serve:
            may += ", may certify"
        line(
            screen, look.status(word, more=f"  {called(state, claim.node)}/{claim.shard_id} {may}")
        )
        for sentence in why:
            screen.print(Padding(look.one_line(sentence), (0, 0, 0, 2)))
        pairs(
            screen,
            (
                ("  layers", look.layers(claim.start, claim.end)),
                ("  recipe", claim.recipe_key or ""),
                ("  node", claim.node),
                ("  boot", claim.boot_id),
                ("  registered", f"sequence {claim.sequence}"),
            ),
        )
        footer(screen, known.footer())

    answer(output, WhyNot(state.name, state.sequence, claim, why), people)
    return OK if claim.eligible_to_serve else FAILED


@app.command
def diff(
    left: Annotated[str, Parameter(help="NODE or NODE/SHARD.")],
    right: Annotated[str, Parameter(help="NODE or NODE/SHARD.")],
    /,
    *,
    source: Source = SOURCE,
    output: Output = OUTPUT,
) -> int:
    """Compare two shards: what they differ in, each thing that would move the numbers.

    Shards of one recipe may hold different layers, in different files; that is no difference. A recipe
    names the model that a cut is from and not the cut's own bytes: of two cuts of the same layers these
    are compared as well. Exit code 1 when two shards may not compute together, and when they hold the
    same layers in files that differ.

    ```
    meshnet shard diff rack-1 rack-2
    ```
    """
    known = load(source)
    state = known.state
    ours, theirs = find_claim(state, left), find_claim(state, right)
    found = tuple(
        Difference(each.reason, each.detail) for each in why_different(state, ours, theirs)
    )
    files = None if found else held_files(source, state, ours, theirs)

    def people(screen: "Console") -> None:
        if found:
            line(
                screen, f"{right} is not of {left}'s recipe; {left}'s values are the expected ones"
            )
            pairs(screen, ((each.reason, each.detail) for each in found))
        else:
            line(screen, f"{left} and {right} are of one recipe: nothing that it names differs")
            screen.print(_of_files(files))
        footer(screen, known.footer())

    document = Differences(state.name, state.sequence, left, right, found, files)
    answer(output, document, people, rows=found)
    return FAILED if found or (files is not None and _are_rivals(*files)) else OK


def _are_rivals(ours: HeldFile, theirs: HeldFile) -> bool:
    """Whether both hold the same layers of the model, and not the same bytes: one may be damaged."""
    return ours.cut == theirs.cut and ours.content_digest != theirs.content_digest


def _of_files(files: tuple[HeldFile, HeldFile] | None) -> str:
    if files is None:
        return (
            "whether their files differ is not known: the records that say so are in the stream, and no "
            "server answers, or they are not those that were folded"
        )
    ours, theirs = files
    if ours.content_digest == theirs.content_digest:
        return "they hold the same file"
    if _are_rivals(ours, theirs):
        return (
            "they hold the same layers in files that differ: hold both against a locked target "
            "(`meshnet node doctor FILE --target NAME`)"
        )
    if ours.cut is None or theirs.cut is None:
        return "their files differ, as a model and a cut of it do"
    return "their files differ, as those of different layers do"
