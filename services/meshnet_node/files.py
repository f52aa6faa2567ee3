"""Files read and written whole.

A file that is replaced shows whoever reads it the old content or the new, even after a crash. One that
somebody names may be a device or a pipe without end: no more of it is read than could be meant.
"""

import errno
import os
import secrets
from pathlib import Path


def read_file(path: Path, what: str, *, most_bytes: int) -> bytes:
    """What is in a file of at most `most_bytes`. Raises OSError: a larger one is no `what` (EFBIG)."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes: no {what}", str(path))
    return content


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
