"""The errors of this package. A text names the file, what was found, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class PinError(ValueError):
    """A model file cannot be pinned or cut as it is."""


class NoSuchFile(PinError):
    """A file, or the folder to write to, is not there."""


@contextmanager
def refusing_os_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn what the system refuses (missing, unreadable, disk full) into a `PinError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoSuchFile(f"{path}: {doing} failed: {error.strerror}") from error
    except OSError as error:
        raise PinError(f"{path}: {doing} failed: {error.strerror or error}") from error
