"""A node's directory: what is kept in it, and under which name.

    node.key      the node's seed, mode 0600
    enrol.json    the request that an operator enrols it with
    outbox.db     its events on their way into the realm's stream; SQLite keeps files beside it
    boot          the boot that registered last: a UUID, new for every start of the serving process

A directory is one node's, in one realm, and one process at a time speaks from it: whoever has the
outbox open. The boot is written down by whoever has, before it is registered. Left out: what the files
hold.
"""

from pathlib import Path

from msgspec import Struct

from meshnet_node.files import replace_file


class NodeDirectory(Struct, frozen=True):
    """The directory at `path`, which need not be there yet."""

    path: Path

    @property
    def key_file(self) -> Path:
        """Where the node's seed is kept."""
        return self.path / "node.key"

    @property
    def enrolment(self) -> Path:
        """Where the request for its enrolment is kept."""
        return self.path / "enrol.json"

    @property
    def outbox(self) -> Path:
        """Where its events are kept until they are stored."""
        return self.path / "outbox.db"

    @property
    def boot(self) -> Path:
        """Where its last boot is written down."""
        return self.path / "boot"

    def keep_boot(self, boot_id: str) -> None:
        """Write down the boot that is about to register. Raises OSError."""
        replace_file(self.boot, f"{boot_id}\n".encode("ascii"))

    def last_boot(self) -> str | None:
        """The boot that registered last, as it is written there; None when none did."""
        try:
            return self.boot.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
