"""What code and peers that are not ours say, as texts that can be shown, logged and put into a fact.

A backend's exception may be of any length, hold what has no UTF-8 form, or fail when it is asked what it
says; a value may be of any kind. Each becomes one bounded text, and nothing here raises.
"""

MAX_TEXT = 1_024
"""Characters, as many as a fact may hold in one text."""

_SHOWN = 120


def cut(text: str, length: int = MAX_TEXT) -> str:
    """A text that has a UTF-8 form and at most `length` characters."""
    plain = text.encode(errors="backslashreplace").decode()
    return plain if len(plain) <= length else f"{plain[: length - 1]}…"


def said_by(error: BaseException) -> str:
    """What an error says, without its kind."""
    try:
        said = str(error)
    except (Exception, SystemExit):  # noqa: BLE001 - even this may fail
        said = "an error that cannot say what it is"
    return cut(said)


def fault_text(error: BaseException) -> str:
    """What went wrong: the kind of error, and what it says."""
    said = said_by(error)
    return cut(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def kind_of(value: object) -> str:
    """A value that is not what it should be, by its kind alone."""
    return "nothing" if value is None else f"a {type(value).__name__}"


def text_of(value: object) -> str:
    """A text or an integer as it is, anything else by its kind."""
    return value if type(value) is str else str(value) if type(value) is int else kind_of(value)


def shown(value: str | int) -> str:
    """A value quoted, a long text cut with its length."""
    if isinstance(value, int) or len(value) <= _SHOWN:
        return repr(value)
    return f"{value[:_SHOWN]!r}… ({len(value)} characters)"
