"""What a command answers, on stdout: a table for people, one JSON document, or NDJSON.

A command hands over the same answer three ways, as a `Document`; which one is printed is the caller's
`-o`. Tables fit 80 columns: what one would copy is never wrapped, so it is short or on a line of its
own. Where a terminal is too narrow for a table's columns, each row is a list of names and values.
NO_COLOR and pipes are rich's business.
"""

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import msgspec

from meshnet_cli.look import one_line, printable
from meshnet_cli.options import Output

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

NOTHING_CHANGED = " (nothing changed)"


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
            sys.stdout.write(f"{_json(document, indent=2)}\n")
        case "ndjson":
            for row in (document,) if rows is None else rows:
                write_line(row)
        case "table":
            people(console())
    sys.stdout.flush()


def write_line(row: object) -> None:
    """One value as a line of JSON. Whoever has no more for now flushes."""
    sys.stdout.write(f"{_json(row)}\n")


def _json(value: object, *, indent: int = -1) -> str:
    """JSON in which what could steer a terminal is escaped: people look at it, too."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    if text.isascii():  # what is not printable there is escaped by JSON's own rules, but for DEL
        return text.replace("\x7f", "\\u007f")
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def console() -> "Console":
    """Where tables go. A text that others wrote cannot steer the terminal."""
    from rich.console import Console

    class Screen(Console):
        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(printable(text), **options)

        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - it is called where rich has caught it, and would exit with 1

    return Screen(highlight=False, emoji=False, markup=False, file=trimmed(sys.stdout))


def trimmed(stream: IO[str]) -> IO[str]:
    """`stream`, written to without the blanks with which rich fills a line up to its end."""

    class Trimmed:
        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

        def write(self, text: str) -> int:
            return stream.write(_BLANKS_AT_END.sub("", text))

    return Trimmed()  # type: ignore[return-value] # all of it is the stream's, but for one


_BLANKS_AT_END = re.compile(r" +(?=\n)")


def note(text: str) -> None:
    """Something a person should know that is no part of the answer, on stderr.

    A tracker or a peer may have written some of it: it cannot steer the terminal. That nobody reads it
    any more keeps nobody from what is still to be done.
    """
    with suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")


def table(*columns: str, right: Iterable[str] = (), flexible: Iterable[str] = ()) -> "Table":
    """A quiet table. Columns keep to one line; `flexible` ones give way where there is no room.

    Where that is not enough, a row is a list of names and values: nothing is dropped.
    """
    from rich.measure import Measurement
    from rich.table import Table

    may_give_way = frozenset(flexible)

    class Quiet(Table):
        def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
            least, wide = -_GAP, options.update(max_width=_UNBOUNDED)
            for name, column in zip(columns, self.columns, strict=True):
                widths = (Measurement.get(console, wide, cell).maximum for cell in column.cells)
                widest = max([len(name), *widths])
                least += _GAP + (min(widest, _LEAST) if name in may_give_way else widest)
            if least <= options.max_width:
                yield from super().__rich_console__(console, options)
                return
            for row in zip(*(column.cells for column in self.columns), strict=True):
                listed = Table.grid(padding=(0, _GAP, 0, 0))
                listed.add_column(style="bold")
                listed.add_column(overflow="fold")
                for name, cell in zip(columns, row, strict=True):
                    listed.add_row(name, cell)
                yield listed
                yield ""

    made = Quiet(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in may_give_way,
            overflow="fold" if name in may_give_way else "ellipsis",
        )
    return made


_GAP = 2
_UNBOUNDED = 1_000_000
_LEAST = 12
"""What a column that gives way keeps, in characters."""


def line(screen: "Console", *parts: "RenderableType") -> None:
    """Print `parts` as one line that is never wrapped or cut: what it holds may be copied."""
    screen.print(*(_one_line(part) for part in parts), soft_wrap=True, sep="")


def pairs(screen: "Console", listed: Iterable[tuple[str, "RenderableType"]]) -> None:
    """Names and values, one pair a line, never wrapped.

    A value that does not fit beside its name has the next line to itself.
    """
    shown = [(name, value) for name, value in listed if value not in ("", None)]
    width = max((len(name) for name, _ in shown if len(name) <= _WIDEST_NAME), default=0)
    for name, value in shown:
        beside = f"{name:<{width}}  "
        if isinstance(value, str) and len(beside) + len(value) > screen.width:
            indent = " " * (len(name) - len(name.lstrip()) + 2)
            if name.strip():
                line(screen, name)
            line(screen, indent, value)
        else:
            line(screen, beside, value)


_WIDEST_NAME = 24


def footer(screen: "Console", text: str) -> None:
    """Up to where an answer speaks: one line, or one a clause where that is too long."""
    for part in (text,) if len(text) <= screen.width else text.replace("; ", ";\n").split("\n"):
        line(screen, part)


def _one_line(part: "RenderableType") -> "RenderableType":
    return one_line(part) if isinstance(part, str) else part
