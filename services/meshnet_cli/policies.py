"""A policy as people state it: a JSON file with every member, and flags over it."""

import msgspec

from meshnet_cli.errors import USAGE, CliError
from meshnet_cli.options import PolicyChoice
from meshnet_events.envelope import MAX_BODY
from meshnet_events.facts import Policy
from meshnet_node.files import read_file


def choose(choice: PolicyChoice, current: Policy) -> Policy:
    """The policy that `choice` asks for; members it does not name stay as in `current`."""
    policy = current
    if choice.policy is not None:
        try:
            policy = msgspec.json.decode(
                read_file(choice.policy, "policy", most_bytes=MAX_BODY), type=Policy
            )
        except msgspec.MsgspecError as error:
            raise CliError(
                f"{choice.policy} is no policy: {error}",
                "`meshnet admin policy show -o json` writes one with every member",
                code=USAGE,
            ) from error
    policy = msgspec.structs.replace(policy, **choice.changes())
    if fault := policy.fault():
        raise CliError(f"the policy asks for too little: {fault}", code=USAGE)
    return policy
