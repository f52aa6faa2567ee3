r"""Which machine is under a node, as a realm may know it: 64 hex that two realms cannot compare.

    machine-id    HMAC-SHA256(key = the machine's id, "meshnet.host.v1\n" + realm)
    declared      SHA-256("meshnet.declared-host.v1\n" + realm + "\n" + what the owner calls it)

A machine's id is 32 lower-case hex, as `/etc/machine-id` has it without its newline; all texts are in
UTF-8. The id itself stays on its machine: nobody can look for it behind the digest. A declared host
counts as distinct only where the policy accepts it. For example, in the realm `lab`

    machine-id, 0123456789abcdef0123456789abcdef
        bc24ce722c745ca92c992772e7de02d5595e2e2b23b9ab49341df61a2c92867e
    declared, rack-2
        1a9066d2bd3c29dd74aebaf0bfeedcc67f2bfeee49221de58b2fc9c0d68077b9
"""

import hashlib
import hmac
import re

from meshnet_events.facts import Host

_is_machine_id = re.compile("[0-9a-f]{32}").fullmatch


def machine_host(realm: str, machine_id: str) -> Host:
    """The host whose `/etc/machine-id` says `machine_id`. Raises ValueError for what is none."""
    if not _is_machine_id(machine_id):
        raise ValueError("machine_id: expected 32 lower-case hex digits")
    digest = hmac.new(machine_id.encode(), f"meshnet.host.v1\n{realm}".encode(), hashlib.sha256)
    return Host(id=digest.hexdigest(), source="machine-id")


def declared_host(realm: str, name: str) -> Host:
    """The host that its owner calls `name`. Raises ValueError for a text without a UTF-8 form."""
    digest = hashlib.sha256(f"meshnet.declared-host.v1\n{realm}\n{name}".encode())
    return Host(id=digest.hexdigest(), source="declared")
