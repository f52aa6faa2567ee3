"""The layer strip: which layers of a model are held, by whom and how often, in characters.

    replicas      ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄██████▄▄▄▄▄▄▄▄      0 to 2
                                    ┃     ┆       ┆
    alpha/main    ━━━━━━━━━━━━━━━━━━━━━━━━
    beta/main                       ━━━━━━━━━━━━━━
    gap [16, 18)                                  ╱╱╱╱
                  0                 9     12      16  18

The axis runs from layer 0 to the last; where there is room a layer has a whole number of columns.
Above stands the number of replicas as a step line (full height is the most, named at its end), then
seams as ticks (`┃` proven, `┆` not), one thin bar a claim, and each gap, hatched and named.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from meshnet_cli import look
from meshnet_tracker.registry.coverage import Coverage

if TYPE_CHECKING:
    from rich.text import Text

WIDTH = 48
MOST_BARS = 16
_STEPS = " ▁▂▃▄▅▆▇█"
_LABEL = 20


class Bar(Struct, frozen=True):
    """A claim over layers `[start, end)`; `status` is a word that `look` knows."""

    label: str
    start: int
    end: int
    status: str


def strip(
    layer_count: int, coverage: Coverage, bars: Sequence[Bar], proven: Sequence[int]
) -> "Text":
    """Draw it. Not more than 80 columns wide, nor more than `MOST_BARS` bars."""
    from rich.text import Text

    shown = bars[:MOST_BARS]
    gaps = coverage.gaps
    named = [(f"gap {look.layers(*gap)}", *gap) for gap in gaps[:MOST_BARS]]
    names = ["replicas", *(bar.label for bar in shown), *(name for name, _, _ in named)]
    indent = min(max(len(look.one_line(name)) for name in names), _LABEL) + 2
    axis = _Axis(layer_count)
    seams = sorted({bar.end for bar in bars} | set(proven))
    seams = [seam for seam in seams if 0 < seam < layer_count]

    drawn = Text()

    def row(name: str, body: "Text | str", *, style: str = "") -> None:
        drawn.append(look.fitted(look.one_line(name), _LABEL).ljust(indent))
        drawn.append(body, style=style or None) if isinstance(body, str) else drawn.append(body)
        drawn.append("\n")

    row("replicas", f"{axis.steps(coverage)}  {_replicas(coverage)}")
    if seams:
        ticks = [(seam, "┃" if seam in proven else "┆") for seam in seams]
        row("", axis.marks(ticks), style="bold")
    for bar in shown:
        row(bar.label, axis.bar(bar.start, bar.end, "━"), style=look.colour(bar.status))
    if len(bars) > len(shown):
        row("", f"and {len(bars) - len(shown)} more claims")
    for name, start, end in named:
        row(name, axis.bar(start, end, "╱"), style=look.colour("refused"))
    row("", axis.labels([0, *seams, *(edge for gap in gaps for edge in gap), layer_count]))
    drawn.rstrip()
    return drawn


class _Axis:
    """Layers to columns."""

    def __init__(self, layer_count: int) -> None:
        self.layer_count = layer_count
        per_layer = WIDTH // layer_count
        self.width = layer_count * per_layer if per_layer else WIDTH

    def column(self, layer: int) -> int:
        return layer * self.width // self.layer_count

    def bar(self, start: int, end: int, glyph: str) -> str:
        left = self.column(start)
        return " " * left + glyph * max(1, self.column(end) - left)

    def steps(self, coverage: Coverage) -> str:
        most = max((interval.replicas for interval in coverage.intervals), default=0)
        line = ""
        for interval in coverage.intervals:
            height = -(-interval.replicas * 8 // most) if most else 0
            line += _STEPS[height] * (self.column(interval.end) - self.column(interval.start))
        return line

    def marks(self, marks: Sequence[tuple[int, str]]) -> str:
        line = [" "] * (self.width + 1)
        for layer, glyph in marks:
            line[self.column(layer)] = glyph
        return "".join(line).rstrip()

    def labels(self, layers: Sequence[int]) -> str:
        """Numbers under the axis, those that fit; the ends always do."""
        wanted = [0, self.layer_count, *layers]
        line = [" "] * (self.width + len(str(self.layer_count)) + 1)
        for layer in wanted:
            text, at = str(layer), self.column(layer)
            around = line[max(0, at - 1) : at + len(text) + 1]
            if all(character == " " for character in around):
                line[at : at + len(text)] = text
        return "".join(line).rstrip()


def _replicas(coverage: Coverage) -> str:
    counts = [interval.replicas for interval in coverage.intervals]
    least, most = min(counts, default=0), max(counts, default=0)
    return str(least) if least == most else f"{least} to {most}"
