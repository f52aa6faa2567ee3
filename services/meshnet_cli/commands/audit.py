"""`meshnet audit`: the log, folded by whoever does not want to take a tracker's word."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from meshnet_auditor.replay import Report, report
from meshnet_cli import look
from meshnet_cli.claims import claims_table
from meshnet_cli.errors import USAGE, CliError
from meshnet_cli.options import OUTPUT, PRESENCE_NOTE, READ, WHERE, Output, Where
from meshnet_cli.output import answer, footer, line, pairs, table
from meshnet_cli.profile import settle
from meshnet_cli.state_source import Known, Stop, fold_file, fold_stream, parse_time
from meshnet_events import reasons as codes

if TYPE_CHECKING:
    from rich.console import Console

app = App(
    name="audit",
    help="""Replay the log: what held, when, and what became of every record.

```
meshnet audit replay --to 19
```
""",
)

_UNSOUND = (
    codes.OVERSIZE,
    codes.NOT_JSON,
    codes.BAD_ENVELOPE,
    codes.BAD_SIGNATURE,
    codes.NOT_CANONICAL,
    codes.WRONG_REALM,
    codes.WRONG_SUBJECT,
)
"""Of steps 1 to 6 of the gate: whose such a record is was not shown."""


_UNCHECKED = "not checked: name the key that you were told, --operator U…"


@app.command
def replay(
    *,
    to: Annotated[int | None, Parameter(help="The last sequence to fold.")] = None,
    as_of: Annotated[
        str | None,
        Parameter(help="Fold the longest prefix with no record later than this RFC 3339 time."),
    ] = None,
    from_: Annotated[
        Path | None,
        Parameter(name="--from", group=READ, help="A history in NDJSON, instead of the stream."),
    ] = None,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> None:
    """Fold the log anew, every signature checked, and say what held.

    Views are never asked: the answer follows from the records alone, and from the operator key that
    you were told. Exit code 3 when they are not a history of that realm, in order, from that key.

    A file has one record a line, `body` in base64:
    `{"sequence":1,"time_ns":…,"subject":"mesh.lab.evt.U…","body":"eyJl…"}`.

    ```
    meshnet audit replay --to 19 -o json
    meshnet audit replay --as-of 2026-11-30T13:30:00Z --operator UCGB…
    meshnet audit replay --from history.ndjson --operator UCGB…
    ```
    """
    if to is not None and as_of is not None:
        raise CliError("--to and --as-of exclude each other", code=USAGE)
    if to is not None and to < 1:
        raise CliError(f"--to is {to}; sequences begin at 1", code=USAGE)
    stop = Stop(to, parse_time(as_of) if as_of else None)
    known = fold_file(from_, where, stop) if from_ else fold_stream(settle(where), stop)
    document = report(known.state)
    answer(output, document, lambda screen: _show(screen, known, document))


def _show(screen: "Console", known: Known, document: Report) -> None:
    state = known.state
    outcomes = document.outcomes
    rejected = sum(outcomes.rejected.values())
    line(screen, f"realm {document.realm} at sequence {document.sequence}, {document.time or '–'}")
    pairs(
        screen,
        (
            ("root of trust", state.realm.root if state.realm else ""),
            ("", _UNCHECKED if state.realm and known.operator is None else ""),
            ("outcomes", f"{outcomes.applied} applied, {outcomes.noop} noop, {rejected} rejected"),
        ),
    )
    if outcomes.rejected:
        rows = table("rejected", "code", "meaning", right=["rejected"], flexible=["meaning"])
        for code, count in outcomes.rejected.items():
            rows.add_row(f"{count:,}", code, look.meaning(code))
        screen.print("", rows)
        if unsound := sum(outcomes.rejected.get(code, 0) for code in _UNSOUND):
            line(screen, f"{unsound:,} records are no sound signed events of this realm")
    if document.recipes:
        rows = table(
            "recipe", "status", "since", "layers", "proven seams", flexible=["proven seams"]
        )
        for recipe in document.recipes:
            rows.add_row(
                look.short(recipe.recipe_key),
                look.status(recipe.status),
                str(recipe.certified_sequence or recipe.since_sequence),
                str(recipe.layer_count),
                " ".join(map(str, recipe.proven_seams)),
            )
        screen.print("", rows)
    if document.claims:
        screen.print("", claims_table(state, document.claims))
    if document.nodes:
        rows = table("node", "status", "label", "group", flexible=["label", "group"])
        for node in document.nodes:
            rows.add_row(
                look.short(node.node),
                look.status(node.status),
                look.one_line(node.label),
                look.one_line(node.group),
            )
        screen.print("", rows)
    screen.print()
    footer(screen, f"{known.origin}; {PRESENCE_NOTE}")
