"""Which machine this is, as a realm may know it: `meshnet_events.host`, and the file it reads."""

from pathlib import Path

from meshnet_cli.errors import CliError
from meshnet_events.facts import Host
from meshnet_events.host import declared_host, machine_host

_MACHINE_ID = Path("/etc/machine-id")


def host_of(realm: str, declared: str | None) -> Host:
    """The host to register: this machine, or the one that its owner declared."""
    if declared is not None:
        return declared_host(realm, declared)
    try:
        return machine_host(realm, _MACHINE_ID.read_text(encoding="ascii").strip())
    except (OSError, ValueError):  # a UnicodeDecodeError is a ValueError
        raise CliError(
            f"{_MACHINE_ID} holds no machine id",
            "make one with `systemd-machine-id-setup`, or name the machine with --declared-host",
        ) from None
