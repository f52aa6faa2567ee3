r"""Which machine this is, as a realm may know it.

    machine-id    HMAC-SHA256(key = the text of /etc/machine-id, "meshnet.host.v1\n" + realm)
    declared      SHA-256("meshnet.declared-host.v1\n" + realm + "\n" + what the owner calls it)

The machine's own id stays here: two realms cannot tell that they see one machine, and nobody can look
for the id behind the digest. A declared host counts as distinct only where the policy accepts it.
"""

import hashlib
import hmac
from pathlib import Path

from meshnet_cli.errors import CliError
from meshnet_events.facts import Host

_MACHINE_ID = Path("/etc/machine-id")


def host_of(realm: str, declared: str | None) -> Host:
    """The host to register: this machine, or the one that its owner declared."""
    if declared is not None:
        text = f"meshnet.declared-host.v1\n{realm}\n{declared}"
        return Host(id=hashlib.sha256(text.encode()).hexdigest(), source="declared")
    try:
        machine = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        machine = ""
    if len(machine) != 32:
        raise CliError(
            f"{_MACHINE_ID} holds no machine id",
            "make one with `systemd-machine-id-setup`, or name the machine with --declared-host",
        )
    digest = hmac.new(machine.encode(), f"meshnet.host.v1\n{realm}".encode(), hashlib.sha256)
    return Host(id=digest.hexdigest(), source="machine-id")
