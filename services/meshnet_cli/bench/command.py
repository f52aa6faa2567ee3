"""The `bench` commands. Each prints one figure beside its raw limit, measured in the same run."""

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, validators

from meshnet_cli.errors import USAGE, CliError
from meshnet_cli.leaving import run_until_told
from meshnet_cli.options import OUTPUT, Output

if TYPE_CHECKING:
    from rich.console import Console

    from meshnet_cli.bench.result import Result

app = App(
    name="bench",
    help="""How fast this is, beside its raw limit.

Machines differ and are noisy, so what counts is the ratio of two rates measured in turns in one run;
a ratio of 1 is the limit.
Those of the log run on one committed mix of records: 40 % handshakes, 30 % registrations, 20 %
attestations, 10 % withdrawals and operator facts.

```
meshnet bench fold
meshnet bench replay --verify -o json
```
""",
)

_SOME = validators.Number(gte=1)
Records = Annotated[int, Parameter(validator=_SOME, help="How many records to measure.")]
Nodes = Annotated[
    int,
    Parameter(
        validator=validators.Number(gte=2),
        help="How many nodes the mix plays, two or more a recipe.",
    ),
]


@app.command
def fold(
    *,
    records: Records = 40_000,
    nodes: Nodes = 1_000,
    verify: Annotated[
        bool, Parameter(negative="--no-verify", help="Whether signatures are checked.")
    ] = True,
    of: Annotated[
        Literal["mix", "registrations"] | None,
        Parameter(help="What to fold: the mix, or (without signatures) registrations alone."),
    ] = None,
    output: Output = OUTPUT,
) -> None:
    """Gate, verification and fold, in memory, on one thread.

    ```
    meshnet bench fold
    meshnet bench fold --no-verify
    ```
    """
    from meshnet_cli.bench.fold import bench_fold
    from meshnet_cli.progress import progress

    with progress("signing records", "records") as meter:
        result = bench_fold(
            records=records,
            nodes=nodes,
            verify=verify,
            of=of or ("mix" if verify else "registrations"),
            progress=meter,
        )
    _print(result, output)


@app.command
def replay(
    *,
    records: Records = 60_000,
    nodes: Nodes = 1_000,
    rounds: Annotated[
        int, Parameter(validator=_SOME, help="How often to measure; the median counts.")
    ] = 5,
    verify: Annotated[bool, Parameter(help="Check signatures, in worker threads.")] = False,
    output: Output = OUTPUT,
) -> None:
    """From a stream on a real nats-server to committed SQLite views.

    ```
    meshnet bench replay
    meshnet bench replay --verify
    ```
    """
    from meshnet_cli.bench.replay import bench_replay
    from meshnet_cli.progress import progress

    async def run() -> "Result":
        with progress("filling a stream", "records") as meter:
            return await bench_replay(
                records=records, nodes=nodes, rounds=rounds, verify=verify, progress=meter
            )

    _print(run_until_told(run), output)


@app.command
def route(
    *,
    claims: Annotated[int, Parameter(validator=_SOME, help="Claims in all.")] = 10_000,
    recipes: Annotated[
        int, Parameter(validator=_SOME, help="Recipes that they are spread over.")
    ] = 100,
    plans: Annotated[
        int,
        Parameter(validator=validators.Number(gte=2), help="How many routes to plan, 2 or more."),
    ] = 5_000,
    purpose: Annotated[Literal["serve", "certify"], Parameter(help="What the routes are for.")] = (
        "serve"
    ),
    presence: Annotated[bool, Parameter(help="Also weigh who is live and how loaded.")] = False,
    output: Output = OUTPUT,
) -> None:
    """Planning one route, in microseconds.

    ```
    meshnet bench route
    meshnet bench route --purpose certify
    ```
    """
    from meshnet_cli.bench.route import bench_route

    if claims < recipes:
        raise CliError(
            f"{claims:,} claims cannot be spread over {recipes:,} recipes",
            "ask for at least one claim a recipe",
            code=USAGE,
        )
    result = bench_route(
        claims=claims, recipes=recipes, plans=plans, purpose=purpose, presence=presence
    )
    _print(result, output)


@app.command
def publish(
    *,
    records: Records = 2_000,
    sync: Annotated[
        Literal["always", "2m"],
        Parameter(help="When the server writes to disk: before it acknowledges, or in time."),
    ] = "always",
    output: Output = OUTPUT,
) -> None:
    """One node's events, signed and acknowledged one by one.

    ```
    meshnet bench publish --sync 2m
    ```
    """
    from meshnet_cli.bench.publish import bench_publish
    from meshnet_cli.progress import progress

    async def run() -> "Result":
        with progress("publishing", "records") as meter:
            return await bench_publish(records=records, sync=sync, progress=meter)

    _print(run_until_told(run), output)


@app.command
def forward(
    *,
    model: Annotated[
        Literal["tiny", "gemma"], Parameter(help="As in `meshnet demo`; `gemma` says more.")
    ] = "tiny",
    tokens: Annotated[int, Parameter(validator=_SOME, help="How many tokens to measure.")] = 64,
    output: Output = OUTPUT,
) -> None:
    """Tokens over a route of two node processes, beside the whole model in one process.

    ```
    meshnet bench forward --model gemma
    ```
    """
    from meshnet_cli.bench.forward import bench_forward
    from meshnet_cli.demo.model import check_available
    from meshnet_cli.progress import progress

    check_available(model)

    async def run() -> "Result":
        with progress("generating", "tokens") as meter:
            return await bench_forward(model=model, tokens=tokens, progress=meter)

    _print(run_until_told(run), output)


@app.command
def memory(
    *,
    records: Records = 500_000,
    nodes: Nodes = 10_000,
    output: Output = OUTPUT,
) -> None:
    """Resident memory with every node registered, and how it grows over a long replay.

    ```
    meshnet bench memory
    ```
    """
    from meshnet_cli.bench.memory import bench_memory
    from meshnet_cli.progress import progress

    with progress("folding in another process", "records") as meter:
        result = bench_memory(records=records, nodes=nodes, progress=meter)
    _print(result, output)


def _print(result: "Result", output: Output) -> None:
    from meshnet_cli.output import answer, pairs

    def people(screen: "Console") -> None:
        pairs(
            screen,
            [
                ("bench", result.bench),
                ("measured", f"{result.measured:,.1f} {result.unit}"),
                ("limit", f"{result.limit:,.1f} {result.unit}: {result.limit_is}"),
                ("ratio", f"{result.ratio:.3f} (1 is the limit)"),
                *((name, str(value)) for name, value in result.config.items()),
            ],
        )

    answer(output, result, people)
