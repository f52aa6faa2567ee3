"""A file that holds one event key: read only where nobody else can read it."""

import os
import stat
from pathlib import Path

from meshnet_events.keys import BadKey, EventKey

_MAX_BYTES = 4_096
_A_KEY = "a file that holds the seed and nothing else"


class KeyFileError(ValueError):
    """The file holds no key. The message never repeats what it does hold; `fix` is what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class KeyExposed(KeyFileError):
    """The file holds a key, and others may read it."""


def read_key_file(path: Path) -> EventKey:
    """The key in a file that its owner alone may read. Raises OSError and `KeyFileError`."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"{path} is no regular file", f"expected {_A_KEY}")
        text = file.read(_MAX_BYTES).decode("ascii", errors="replace")
    try:
        key = EventKey.from_text(text)
    except BadKey as error:
        raise KeyFileError(
            f"{path}: {error}", f"put the right one back, {_A_KEY}, or make a new key elsewhere"
        ) from None
    if status.st_mode & 0o077:
        raise KeyExposed(
            f"{path} holds a secret and others may read it (mode {status.st_mode & 0o777:04o})",
            f"chmod 600 {path}; if others had it in their hands, make a new key",
        )
    return key
