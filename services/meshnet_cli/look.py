"""How things look: a status is always a glyph, a word and a colour, the same everywhere.

| status | glyph | colour (Okabe-Ito) |
|---|---|---|
| certified, eligible, live, enrolled, applied | ● | bluish green |
| dark, noop, not-enrolled | ◐ | grey |
| revoked, suspended | ✕ | vermilion |
| conflict | ▲ | orange |
| refused, rejected | ◇ | vermilion, outlined |
| withdrawn, superseded, not-live | ◌ | grey, outlined |
| unknown | ○ | grey |

The word carries the meaning; glyph and colour only make it quick to find. The findings of a doctor:

| finding | glyph | colour |
|---|---|---|
| ok | ✓ | bluish green |
| warning | ! | orange |
| failed | ✗ | vermilion |
| skipped | – | grey |
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_GREEN = "#009e73"
_VERMILION = "#d55e00"
_ORANGE = "#e69f00"
_GREY = "#999999"

_LOOK = {
    **dict.fromkeys(("certified", "eligible", "live", "enrolled", "applied"), ("●", _GREEN)),
    **dict.fromkeys(("dark", "noop", "not-enrolled"), ("◐", _GREY)),
    **dict.fromkeys(("revoked", "suspended"), ("✕", _VERMILION)),
    "conflict": ("▲", _ORANGE),
    **dict.fromkeys(("refused", "rejected"), ("◇", _VERMILION)),
    **dict.fromkeys(("withdrawn", "superseded", "not-live"), ("◌", _GREY)),
}
_UNKNOWN = ("○", _GREY)

FINDINGS = {
    "ok": ("✓", _GREEN),
    "warning": ("!", _ORANGE),
    "failed": ("✗", _VERMILION),
    "skipped": ("–", _GREY),
}
"""Glyph and colour of a doctor's finding."""

SHORT_KEY = 12
"""Characters of a key in a table: more than the 8 that commands ask for."""


def status(word: str, *, more: str = "") -> "Text":
    """`● certified`, coloured; `more` is appended plainly."""
    from rich.text import Text

    glyph, colour = _LOOK.get(word, _UNKNOWN)
    return Text.assemble((one_line(f"{glyph} {word}"), colour), one_line(more))


def printable(text: str) -> str:
    """`text` with whatever could steer a terminal spelled out: others wrote some of what we show."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1]
        for character in text
    )


def one_line(text: str) -> str:
    """`printable` text without line breaks: what others wrote stays in its place."""
    return printable(text).replace("\n", "\\n")


def colour(word: str) -> str:
    """The colour of a status."""
    return _LOOK.get(word, _UNKNOWN)[1]


def claim_word(status: str, reasons: Sequence[str]) -> str:
    """The word for a claim: `eligible`, how it ended, or what first keeps a live one from serving."""
    if status != "live":
        return status
    return reasons[0] if reasons else "eligible"


def claim_because(status: str, reasons: Sequence[str]) -> str:
    """The reasons that bar a claim, but for the one that its word says already."""
    word = claim_word(status, reasons)
    return ", ".join(reason for reason in reasons if reason != word)


def meaning(code: str) -> str:
    """What a code of the registry means, in a sentence."""
    from meshnet_events.admission import CAPABILITY_REASONS
    from meshnet_events.reasons import CAPABILITY, MEANING

    return MEANING.get(code) or CAPABILITY_REASONS.get(code.removeprefix(CAPABILITY), "")


def short(key: str | None) -> str:
    """As much of a key as names it; a dash when there is none."""
    return key[:SHORT_KEY] if key else "–"


def layers(start: int | None, end: int | None) -> str:
    """`[0, 9)`: the first layer and the one after the last."""
    return "–" if start is None else f"[{start}, {end})"


def fitted(text: str, width: int) -> str:
    """`text` in at most `width` characters; `…` where some are left out."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
