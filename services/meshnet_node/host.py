"""Which machine this is: the file that says so, read once and believed only where it can be.

The digest that a realm sees of it is `meshnet_events.host`'s. What images and half-made containers
leave in the place of a machine id is refused: machines that share one would count as a single host, or
hide that they are.
"""

from pathlib import Path

from meshnet_events.facts import Host
from meshnet_events.host import declared_host, machine_host

MACHINE_ID = Path("/etc/machine-id")


class NoMachineId(ValueError):
    """The machine has no id of its own: what was `found`, and what to do about it, the `fix`."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(f"{found}; {fix}")
        self.found = found
        self.fix = fix


class NoHostName(ValueError):
    """What a machine is declared to be called is no name."""


def host_of(realm: str, declared: str | None = None, *, machine_id: Path = MACHINE_ID) -> Host:
    """The host to register: this machine, or the one that its owner declared.

    Raises `NoMachineId`, and `NoHostName` for a declared name that is blank or has no UTF-8 form.
    """
    if declared is not None:
        return declared_host(realm, check_name(declared))
    return machine_host(realm, read_machine_id(machine_id))


def check_name(declared: str) -> str:
    """The name that an owner declares. Raises `NoHostName`."""
    if not declared.strip():
        raise NoHostName("the declared host is called nothing; expected a name")
    try:
        declared.encode()
    except UnicodeEncodeError:
        raise NoHostName(f"the declared host {declared!r} has no UTF-8 form") from None
    return declared


def read_machine_id(path: Path = MACHINE_ID) -> str:
    """The text of the machine's id. Raises `NoMachineId` when it has none, or a placeholder."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise _none(path, error.strerror or "it cannot be read") from None
    except UnicodeDecodeError:
        raise _none(path, "it is no text of 32 hex digits") from None
    if text == "uninitialized" or len(set(text)) == 1:
        raise _none(path, f"a placeholder ({text[:32]}), which other machines have too")
    try:
        machine_host("", text)
    except ValueError:
        raise _none(path, "it is empty, or no 32 lower-case hex digits") from None
    return text


def _none(path: Path, found: str) -> NoMachineId:
    return NoMachineId(
        f"{path} holds no machine id: {found}",
        "make one with `systemd-machine-id-setup`, or name the machine with --declared-host",
    )
