"""What a command answers, on stdout: a table for people, one JSON document, or NDJSON.

A command hands over the same answer three ways, as a `Document`; which one is printed is the caller's
`-o`. Tables fit 80 columns: what one would copy is never wrapped, so it is short or on a line of its
own. NO_COLOR, pipes and narrow terminals are rich's business.
"""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from meshnet_cli.look import printable
from meshnet_cli.options import Output

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PRESENCE_NOTE = "presence is left out"


def answer(
    output: Output,
    document: object,
    people: Callable[["Console"], None],
    *,
    rows: Iterable[object] | None = None,
) -> None:
    """Print `document`; its `rows` (itself, if none) as NDJSON; or what `people` prints."""
    match output.format:
        case "json":
            text = msgspec.json.format(msgspec.json.encode(document), indent=2)
            sys.stdout.write(f"{text.decode()}\n")
        case "ndjson":
            for row in (document,) if rows is None else rows:
                write_line(row)
        case "table":
            people(console())
    sys.stdout.flush()


def write_line(row: object) -> None:
    """One value as a line of JSON."""
    sys.stdout.write(f"{msgspec.json.encode(row).decode()}\n")


def console() -> "Console":
    """Where tables go. A text that others wrote cannot steer the terminal."""
    from rich.console import Console

    class Screen(Console):
        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(printable(text), **options)

    return Screen(highlight=False, emoji=False, markup=False)


def note(text: str) -> None:
    """Something a person should know that is no part of the answer, on stderr."""
    sys.stderr.write(f"{text}\n")


def table(*columns: str, right: Iterable[str] = (), flexible: Iterable[str] = ()) -> "Table":
    """A quiet table. Columns keep to one line; `flexible` ones give way where there is no room."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in flexible,
            overflow="fold" if name in flexible else "ellipsis",
        )
    return made


def line(screen: "Console", *parts: "RenderableType") -> None:
    """Print `parts` as one line that is never wrapped or cut: what it holds may be copied."""
    screen.print(*(_one_line(part) for part in parts), soft_wrap=True, sep="")


def pairs(screen: "Console", listed: Iterable[tuple[str, "RenderableType"]]) -> None:
    """Names and values, one pair a line, never wrapped."""
    shown = [(name, value) for name, value in listed if value not in ("", None)]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        line(screen, f"{name:<{width}}  ", value)


facts = pairs
"""The name that `meshnet_cli.bench` knows it by."""


def _one_line(part: "RenderableType") -> "RenderableType":
    return part.replace("\n", "\\n") if isinstance(part, str) else part
