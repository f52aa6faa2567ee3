"""Whether the machine is fit to be a node: its key, its name, its disk.

Nothing is left behind: the file that is written to try the disk has no name, and goes with the process.
"""

import os
import shutil
import tempfile
from pathlib import Path

from msgspec import Struct

from meshnet_node.directory import NodeDirectory
from meshnet_node.doctor.check import Check, Silent, Telling, make_checks
from meshnet_node.doctor.finding import Diagnosis, Finding, failed, ok, warning
from meshnet_node.host import MACHINE_ID, NoHostName, NoMachineId, check_name, read_machine_id
from meshnet_node.key_file import KeyFileError, read_key_file

TRIAL_BYTES = 1 << 20
"""What is written to try the disk: more than a node's state and its unsent events take at once."""
SCARCE_BYTES = 256 << 20


class MachineCase(Struct, frozen=True, kw_only=True):
    """What is looked at."""

    directory: NodeDirectory
    declared_host: str | None = None
    machine_id: Path = MACHINE_ID


def examine_machine(case: MachineCase, *, telling: Telling | None = None) -> Diagnosis:
    """Make the checks of the machine."""
    return Diagnosis(make_checks(MACHINE_CHECKS, case, telling or Silent()))


def _credentials(case: MachineCase) -> Finding:
    path = case.directory.key_file
    try:
        key = read_key_file(path)
    except FileNotFoundError:
        return failed(
            "credentials",
            f"there is no node key at {path}",
            "make one with `meshnet node init`, or name its directory with --dir",
        )
    except OSError as error:
        return failed("credentials", f"{path}: {error.strerror}", "run this as the key's owner")
    except KeyFileError as error:
        return failed("credentials", str(error), error.fix)
    return ok("credentials", f"{key.public}, readable by its owner alone")


def _host(case: MachineCase) -> Finding:
    name = case.declared_host
    if name is None:
        try:
            read_machine_id(case.machine_id)
        except NoMachineId as error:
            return failed("host", error.found, error.fix)
        return ok("host", f"named by {case.machine_id}")
    try:
        check_name(name)
    except NoHostName as error:
        return failed("host", str(error), "name it with --declared-host, or leave that out")
    return ok("host", f"declared as {name!r}; a distinct one where the realm's policy accepts that")


def _disk(case: MachineCase) -> Finding:
    folder = _existing(case.directory.path)
    free = shutil.disk_usage(folder).free
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(TRIAL_BYTES))  # what compresses well may fit where nothing does
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return failed(
            "disk",
            f"{folder}: writing {TRIAL_BYTES:,} bytes failed: {error.strerror}; {free:,} bytes are free",
            "make room or mount it for writing: a node that cannot write loses its place in its chain",
        )
    if free < SCARCE_BYTES:
        return warning("disk", f"{folder}: {free / 2**20:,.0f} MiB are free", "make room soon")
    return ok("disk", f"{folder}: written and synced, {free / 2**30:,.1f} GiB free")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there: none is made to try it."""
    folder = folder.resolve()
    return next((one for one in (folder, *folder.parents) if one.is_dir()), folder)


MACHINE_CHECKS: tuple[Check[MachineCase, Finding], ...] = (
    Check("credentials", _credentials, "see that the node's directory can be read"),
    Check("host", _host, "name the machine with --declared-host"),
    Check("disk", _disk, "see that the node's directory can be written to"),
)
