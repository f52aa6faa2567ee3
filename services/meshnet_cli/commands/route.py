"""`meshnet route`: chains of shards over a whole model, or every reason why there are none."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, validators

from meshnet_cli import look
from meshnet_cli.errors import FAILED, OK
from meshnet_cli.lookup import called, find_node, find_recipe
from meshnet_cli.options import OUTPUT, SOURCE, Output, Source
from meshnet_cli.output import answer, footer, line, pairs, table
from meshnet_cli.remedies import for_a_route
from meshnet_cli.state_source import Known, load
from meshnet_tracker.registry.routing.plan import Hop, NoRoute, Route
from meshnet_tracker.registry.routing.plan import plan as find_route
from meshnet_tracker.registry.state import State

if TYPE_CHECKING:
    from rich.console import Console

app = App(
    name="route",
    help="""Plan a route over a whole model, or hear what is in the way.

```
meshnet route plan 17ae3860
```
""",
)

Key = Annotated[str, Parameter(help="8 characters or more of a recipe key.")]
ToDo = Annotated[
    Literal["serve", "certify"],
    Parameter(help="To serve users, or to bring a dark recipe to light."),
]
Without = Annotated[
    list[str] | None, Parameter(help="A node (label or key) to do without. May be repeated.")
]


@app.command
def plan(
    key: Key,
    /,
    *,
    purpose: ToDo = "serve",
    alternatives: Annotated[
        int,
        Parameter(validator=validators.Number(gte=0), help="So many more, that share no shard."),
    ] = 0,
    exclude: Without = None,
    source: Source = SOURCE,
    output: Output = OUTPUT,
) -> int:
    """Plan a route: fewest hops, then proven seams (to certify, unproven ones), then node keys.

    The same state gives the same answer to everyone. Where shards overlap, a hop starts where the
    one before it stops. Exit code 1 when there is none, with what is in the way.

    ```
    meshnet route plan 17ae3860 --alternatives 2
    ```
    """
    known = load(source)
    excluded = _keys(known.state, exclude)
    found = find_route(
        known.state,
        find_recipe(known.state, key).recipe_key,
        purpose=purpose,
        exclude=excluded,
        alternatives=alternatives,
    )
    return _answer(known, found, excluded, output)


@app.command
def why_not(
    key: Key,
    /,
    *,
    purpose: ToDo = "serve",
    exclude: Without = None,
    source: Source = SOURCE,
    output: Output = OUTPUT,
) -> int:
    """Say what stands in the way of a route. Exit code 1 when there is none.

    What is named is what would have to be otherwise: layers that nobody holds, seams that are not
    proven, neighbours that refused one another, too few nodes, hosts or groups.

    ```
    meshnet route why-not 17ae3860 --purpose certify
    ```
    """
    known = load(source)
    excluded = _keys(known.state, exclude)
    found = find_route(
        known.state,
        find_recipe(known.state, key).recipe_key,
        purpose=purpose,
        exclude=excluded,
    )
    return _answer(known, found, excluded, output)


def _keys(state: State, names: Sequence[str] | None) -> frozenset[str]:
    return frozenset(find_node(state, name).node for name in names or ())


def _answer(known: Known, found: Route | NoRoute, excluded: frozenset[str], output: Output) -> int:
    if isinstance(found, NoRoute):
        answer(output, found, lambda screen: _show_none(screen, known, found, excluded))
        return FAILED
    answer(output, found, lambda screen: _show(screen, known, found))
    return OK


def _show_none(screen: "Console", known: Known, found: NoRoute, excluded: frozenset[str]) -> None:
    short = look.short(found.recipe_key)
    line(screen, look.status("refused", more=f"  no route to {found.purpose} {short}"))
    line(screen, f"recipe {found.recipe_key}")
    pairs(screen, (("  " + obstacle.code, obstacle.detail) for obstacle in found.obstacles))
    for each in for_a_route((one.code for one in found.obstacles), found.recipe_key, excluded):
        line(screen, each)
    footer(screen, known.footer())


def _show(screen: "Console", known: Known, found: Route) -> None:
    line(screen, f"a route to {found.purpose} {look.short(found.recipe_key)}")
    line(screen, f"recipe {found.recipe_key}")
    for number, hops in enumerate((found.hops, *found.alternatives)):
        if number:
            screen.print(f"\nalternative {number}")
        screen.print(_hops(known.state, hops))
    footer(screen, known.footer())


def _hops(state: State, hops: Sequence[Hop]) -> object:
    rows = table("hop", "node/shard", "computes", "holds", "endpoint", right=["hop"])
    for number, hop in enumerate(hops):
        rows.add_row(
            str(number),
            f"{called(state, hop.node)}/{hop.shard_id}",
            look.layers(hop.effective_start, hop.effective_end),
            look.layers(hop.start, hop.end),
            hop.endpoint,
        )
    return rows
