"""What commands that prove a shard share: the question put to the doctor, and how findings are shown."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshnet_cli import look
from meshnet_cli.options import ShardChoice, parse_layers
from meshnet_cli.progress import progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from meshnet_node.doctor import Finding, ShardQuestion


def question_of(files: Sequence[Path], choice: ShardChoice) -> "ShardQuestion":
    """What is asked of the doctor. Raises `CliError`."""
    from meshnet_node.doctor import ShardQuestion, read_expected

    return ShardQuestion(
        files=tuple(files),
        manifest=choice.manifest,
        recipe_id=choice.recipe,
        recipe_version=choice.recipe_version,
        backend_id=choice.backend,
        layers=None if choice.layers is None else parse_layers(choice.layers),
        device=choice.device,
        artifact_id=choice.artifact_id,
        revision=choice.revision,
        target=choice.target,
        expected=None if choice.expect is None else read_expected(choice.expect),
        cache=choice.cache,
        watched=lambda: progress("hashing", "bytes"),
    )


class Follow:
    """Tells a person each finding as it comes, and on a terminal what is being looked at."""

    def __init__(self, screen: "Console | None") -> None:
        self._screen = screen
        self._waits = screen is not None and sys.stderr.isatty()

    def begins(self, name: str) -> None:
        """A check is being made."""
        if self._waits and name != "files":  # these have a bar of their own
            sys.stderr.write(f"\r… {name}\x1b[K")
            sys.stderr.flush()

    def finds(self, finding: "Finding") -> None:
        """A check was made."""
        if self._waits:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        if self._screen is not None:
            _show(self._screen, finding)


def _show(screen: "Console", finding: "Finding") -> None:
    from rich.table import Table

    glyph, colour = look.FINDINGS[finding.status]
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=1)
    row.add_column(width=11)
    row.add_column(overflow="fold")
    fix = finding.fix if finding.status != "ok" else ""
    row.add_row(plain(glyph, colour), finding.name, look.one_line(finding.found))
    if fix:
        row.add_row("", "", plain(look.one_line(fix), "dim"))
    screen.print(row)


def plain(text: str, style: str) -> "Text":
    """A text of one style, in which nothing is markup."""
    from rich.text import Text

    return Text(text, style=style)
