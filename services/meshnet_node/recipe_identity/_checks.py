"""What a value of an identity may be, and how an error speaks of one that is not.

A check takes the value and the full name of its field (`artifact.revision`) and raises
`RecipeIdentityError` with what was found and what was expected. Values come from strangers and
people paste secrets into the wrong field, so a message says what kind of value a text was and how
long, never what it says; of names nobody knows, how many there are. The one text it repeats is a
reference of `MOVING_REFERENCES`.
"""

import re
from collections.abc import Collection
from typing import Any

MAX_INTEGER = 2**53 - 1
"""Integers beyond this are not the same number to every JSON reader."""

MAX_TEXT = 1_024
"""Characters. A text that anyone may choose is kept for good by everyone who reads the log."""

MOVING_REFERENCES = frozenset({"main", "master", "head", "latest", "dev", "trunk"})

_SHOWN_IN_DETAIL = 80
_digest = re.compile(r"[0-9a-f]{64}").fullmatch


class RecipeIdentityError(ValueError):
    """A value is not an identity, or may not do what was asked. The message names the field."""


def found(value: object) -> str:
    """Describe a value that failed a check: a number as it is, anything else by kind and size."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < 10**20 else f"an integer of {value.bit_length()} bits"
        case float():
            return f"the float {value!r}"
        case str():
            return f"a text of {len(value)} characters"
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)} members"
        case _:
            return f"a {type(value).__name__}"


def brief(value: str | int) -> str:
    """Show a value that passed its checks, cut to a length that fits in an event's detail."""
    if isinstance(value, int):
        return str(value)
    if len(value) <= _SHOWN_IN_DETAIL:
        return repr(value)
    return f"{value[:_SHOWN_IN_DETAIL]!r}… ({len(value)} characters)"


def check_text(value: object, field: str) -> None:
    """Refuse anything but a text that is non-empty after trimming and has a UTF-8 form."""
    if not isinstance(value, str):
        raise RecipeIdentityError(f"{field}: found {found(value)}, expected a text")
    if not value.strip():
        raise RecipeIdentityError(f"{field}: found an empty text, expected a non-empty one")
    if len(value) > MAX_TEXT:
        raise RecipeIdentityError(
            f"{field}: found a text of {len(value)} characters, expected at most {MAX_TEXT}"
        )
    check_unicode(value, field)


def check_unicode(value: str, field: str) -> None:
    """Refuse a lone surrogate: it has no UTF-8 form, so it cannot be digested or sent."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RecipeIdentityError(
                f"{field}: found a lone surrogate at character {error.start}, "
                "expected text that has a UTF-8 form"
            ) from None


def check_digest(value: object, field: str) -> None:
    """Refuse anything but exactly 64 lowercase hex digits (a trailing newline included)."""
    if isinstance(value, str) and _digest(value):
        return
    raise RecipeIdentityError(
        f"{field}: found {found(value)}, expected exactly 64 lowercase hex digits"
    )


def check_integer(value: object, field: str, *, least: int) -> None:
    """Refuse anything but an integer from `least` to 2^53-1; `True` and `1.0` are none."""
    if type(value) is not int:
        raise RecipeIdentityError(f"{field}: found {found(value)}, expected an integer")
    if not least <= value <= MAX_INTEGER:
        raise RecipeIdentityError(
            f"{field}: found {found(value)}, expected an integer from {least} to 2^53-1"
        )


def check_pin(value: object, field: str) -> None:
    """Refuse a text that can come to mean something else tomorrow: a branch, a tag, `latest`."""
    check_text(value, field)
    plain = str(value).strip().lower()
    if plain in MOVING_REFERENCES or plain.startswith("refs/"):
        shown = repr(plain) if plain in MOVING_REFERENCES else "'refs/…'"
        raise RecipeIdentityError(
            f"{field}: found {shown}, a reference that moves; expected a pin such as a "
            "commit hash or a digest"
        )


def check_moment(value: object, field: str) -> None:
    """Refuse anything but None, a finite number up to 2^53-1, or a text: a time as it was given."""
    if value is None:
        return
    if isinstance(value, str):
        check_text(value, field)
    elif (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= MAX_INTEGER  # which NaN is not
    ):
        raise RecipeIdentityError(
            f"{field}: found {found(value)}, expected null, a finite number within ±(2^53-1), "
            "or a text"
        )


def check_type(value: object, expected: type, field: str) -> None:
    """Refuse a part that is not of the type that has checked itself."""
    if not isinstance(value, expected):
        raise RecipeIdentityError(f"{field}: found {found(value)}, expected {expected.__name__}")


def members(
    block: object, field: str, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return `block` once it is an object with all required and no unknown members.

    `field` is the object's own name and "" for the outermost one.
    """
    prefix = f"{field}." if field else ""
    if not isinstance(block, dict):
        raise RecipeIdentityError(
            f"{field or 'identity'}: found {found(block)}, expected an object"
        )
    if missing := [f"{prefix}{name}" for name in required if name not in block]:
        raise RecipeIdentityError(
            f"{', '.join(missing)}: found nothing, expected "
            + ("it to be stated" if len(missing) == 1 else "them to be stated")
        )
    unknown = len(block.keys() - {*required, *optional})
    if unknown:
        raise RecipeIdentityError(
            f"{field or 'identity'}: found {unknown} unknown member(s); a field that is not known "
            "here may move the numbers"
        )
    return block
