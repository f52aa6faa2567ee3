"""A file replaced whole: whoever reads it sees the old content or the new, even after a crash."""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `content` to `path`, whole or not at all, in place of what is there.

    The folder must exist. `mode` is what the file may have; the umask takes from it. Raises
    OSError, and leaves the old file and nothing beside it then.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
