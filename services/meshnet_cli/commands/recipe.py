"""`meshnet recipe`: what may be computed, by how many, and what may serve users."""

from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter
from msgspec import Struct

from meshnet_cli import look
from meshnet_cli.lookup import called, find_recipe
from meshnet_cli.options import OUTPUT, SOURCE, Output, Source
from meshnet_cli.output import answer, footer, line, pairs, table
from meshnet_cli.state_source import Known, load
from meshnet_cli.strip import Bar, strip
from meshnet_tracker.registry.coverage import Coverage
from meshnet_tracker.registry.eligibility import judge, usable_claims
from meshnet_tracker.registry.explain import why_recipe
from meshnet_tracker.registry.routing.plan import NoRoute
from meshnet_tracker.registry.routing.problem import layers
from meshnet_tracker.registry.rows import Certification, Recipe
from meshnet_tracker.registry.state import State
from meshnet_tracker.registry.summary import RecipeSummary, summarize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

app = App(
    name="recipe",
    help="""See what may be computed, and what may serve users.

A recipe is an artifact and exactly how it is executed. It is known once an admitted claim offers it:
*dark* until a real forward over several nodes *certified* it, unless an operator *revoked* it.

```
meshnet recipe list
```
""",
)

Key = Annotated[str, Parameter(help="8 characters or more of a recipe key.")]


class Listed(Struct, frozen=True):
    """One recipe in a list. `gaps` are layers `[start, end)` that nobody holds."""

    recipe_key: str
    status: str
    artifact_id: str
    layer_count: int
    claims: int
    distinct_hosts: int
    least_replicas: int
    gaps: tuple[tuple[int, int], ...]
    has_serving_route: bool
    has_certifying_route: bool


class Recipes(Struct, frozen=True):
    """Every recipe that a state knows."""

    realm: str
    sequence: int
    recipes: tuple[Listed, ...]


class Shown(Struct, frozen=True):
    """One recipe: why it is what it is, what there is of it, and the block that made it known."""

    realm: str
    sequence: int
    why: str
    model_artifact_digest: str
    runtime_recipe_digest: str
    since_sequence: int
    certification: Certification | None
    summary: RecipeSummary
    identity: msgspec.Raw


class Explanation(Struct, frozen=True):
    """Why a recipe has its status, and the forward that certified it."""

    realm: str
    sequence: int
    recipe_key: str
    status: str
    why: str
    since_sequence: int
    certification: Certification | None


@app.command(name="list")
def list_recipes(*, source: Source = SOURCE, output: Output = OUTPUT) -> None:
    """List recipes with their status, how often their layers are held, and any gap.

    Counted are claims that a route may use: "hosts" on how many distinct machines they are, and "least"
    how many hold the layer that the fewest hold. "gap" is the first run of layers that nobody holds.

    ```
    meshnet recipe list
    ```
    """
    known = load(source)
    state = known.state
    found = tuple(_listed(state, state.recipes[key]) for key in sorted(state.recipes))

    def people(screen: "Console") -> None:
        if found:
            numbers = ("layers", "claims", "hosts", "least")
            rows = table(
                "recipe", "status", "model", *numbers, "gap", right=numbers, flexible=["model"]
            )
            for each in found:
                rows.add_row(
                    look.short(each.recipe_key),
                    look.status(each.status),
                    look.one_line(each.artifact_id),
                    str(each.layer_count),
                    str(each.claims),
                    str(each.distinct_hosts),
                    str(each.least_replicas),
                    look.layers(*each.gaps[0]) if each.gaps else "",
                )
            screen.print(rows)
        else:
            screen.print("no recipe is known: one is, once a node registers a shard of it")
        footer(screen, known.footer())

    answer(output, Recipes(state.name, state.sequence, found), people, rows=found)


@app.command
def show(key: Key, /, *, source: Source = SOURCE, output: Output = OUTPUT) -> None:
    """Show one recipe: its status and why, and which of its layers are held by whom.

    In the strip, bars are claims over the layers from 0 to the last; ticks are seams (`┃` proven by
    a certified forward); above stands how many claims hold each layer; a gap is hatched.

    ```
    meshnet recipe show 17ae3860
    ```
    """
    known = load(source)
    state = known.state
    recipe = find_recipe(state, key)
    document = Shown(
        realm=state.name,
        sequence=state.sequence,
        why=why_recipe(state, recipe.recipe_key),
        model_artifact_digest=recipe.model_artifact_digest,
        runtime_recipe_digest=recipe.runtime_recipe_digest,
        since_sequence=recipe.sequence,
        certification=recipe.certification,
        summary=summarize(state, recipe.recipe_key),
        identity=recipe.identity,
    )
    answer(output, document, lambda screen: _show(screen, known, recipe, document))


@app.command
def explain(key: Key, /, *, source: Source = SOURCE, output: Output = OUTPUT) -> None:
    """Say why a recipe has its status, who certified it and when, and what would change it.

    ```
    meshnet recipe explain 17ae3860
    ```
    """
    known = load(source)
    state = known.state
    recipe = find_recipe(state, key)
    proof = recipe.certification
    document = Explanation(
        realm=state.name,
        sequence=state.sequence,
        recipe_key=recipe.recipe_key,
        status=recipe.status,
        why=why_recipe(state, recipe.recipe_key),
        since_sequence=recipe.sequence,
        certification=proof,
    )

    def people(screen: "Console") -> None:
        screen.print(_why(document.why, recipe.status))
        pairs(
            screen,
            (
                ("recipe", document.recipe_key),
                ("known since", f"sequence {document.since_sequence}"),
                ("certified by", f"sequence {proof.sequence}" if proof else ""),
                (
                    "session",
                    f"{proof.route_session_id}, epoch {proof.route_epoch}" if proof else "",
                ),
                ("evidence", proof.evidence_digest if proof else ""),
                *(("took part", node) for node in (proof.nodes if proof else ())),
            ),
        )
        footer(screen, known.footer())

    answer(output, document, people)


def _listed(state: State, recipe: Recipe) -> Listed:
    summary = summarize(state, recipe.recipe_key)
    return Listed(
        recipe_key=recipe.recipe_key,
        status=recipe.status,
        artifact_id=_labels(recipe).artifact.artifact_id,
        layer_count=summary.layer_count,
        claims=summary.claims,
        distinct_hosts=summary.distinct_hosts,
        least_replicas=summary.least_replicas,
        gaps=summary.gaps,
        has_serving_route=not isinstance(summary.serving, NoRoute),
        has_certifying_route=not isinstance(summary.certifying, NoRoute),
    )


class _Artifact(Struct, frozen=True):
    artifact_id: str


class _Labels(Struct, frozen=True):
    artifact: _Artifact


def _labels(recipe: Recipe) -> _Labels:
    return msgspec.json.decode(recipe.identity, type=_Labels)


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _why(sentence: str, status: str) -> "Text":
    """The sentence, which begins with the status, as that status looks."""
    return look.status(status, more=sentence.removeprefix(status))


def _show(screen: "Console", known: Known, recipe: Recipe, document: Shown) -> None:
    state, summary = known.state, document.summary
    screen.print(_why(document.why, recipe.status))
    pairs(
        screen,
        (
            ("recipe", recipe.recipe_key),
            ("model", _labels(recipe).artifact.artifact_id),
            ("artifact", recipe.model_artifact_digest),
            ("recipe digest", recipe.runtime_recipe_digest),
            ("claims", f"{summary.claims} usable on {_hosts(summary.distinct_hosts)}"),
            ("replicas", f"at least {summary.least_replicas}"),
            ("known since", f"sequence {recipe.sequence}"),
        ),
    )
    bars = [
        Bar(
            f"{called(state, claim.node)}/{claim.shard_id}",
            *layers(claim),
            look.claim_word(claim.status, judge(state, claim).reasons),
        )
        for claim in usable_claims(state, recipe.recipe_key)
    ]
    bars.sort(key=lambda bar: (bar.start, bar.end, bar.label))
    drawn = strip(recipe.layer_count, Coverage(summary.replicas), bars, recipe.proven_seams)
    screen.print()
    line(screen, drawn)
    screen.print()
    for purpose, found in (("serve", summary.serving), ("certify", summary.certifying)):
        if isinstance(found, NoRoute):
            line(screen, look.status("refused", more=f"  no route to {purpose}:"))
            pairs(screen, (("    " + each.code, each.detail) for each in found.obstacles))
        else:
            line(screen, look.status("eligible", more=f"  there is a route to {purpose}"))
    footer(screen, known.footer())
