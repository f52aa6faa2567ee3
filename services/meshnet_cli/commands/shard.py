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
    """Why two shards may not compute together; nothing when they may."""

    realm: str
    sequence: int
    left: str
    right: str
    differences: tuple[Difference, ...]


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

    Shards of one recipe may hold different layers; that is no difference. Exit code 1 when they
    may not compute together.

    ```
    meshnet shard diff rack-1 rack-2
    ```
    """
    known = load(source)
    state = known.state
    mismatches = why_different(state, find_claim(state, left), find_claim(state, right))
    found = tuple(Difference(each.reason, each.detail) for each in mismatches)

    def people(screen: "Console") -> None:
        if found:
            pairs(screen, ((each.reason, each.detail) for each in found))
        else:
            line(screen, f"{left} and {right} compute the same: nothing differs")
        footer(screen, known.footer())

    document = Differences(state.name, state.sequence, left, right, found)
    answer(output, document, people, rows=found)
    return FAILED if found else OK
