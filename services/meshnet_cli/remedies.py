"""What only an operator can lift, and with which command: the same words wherever a node meets it."""

from meshnet_cli import look
from meshnet_node.directory import NodeDirectory


def enrol(directory: NodeDirectory) -> str:
    """What lets a node speak that nobody has enrolled."""
    return f"an operator must run `meshnet admin node enrol {directory.enrolment}`"


def reinstate(node: str) -> str:
    """What ends a suspension or a conflict."""
    return f"an operator must run `meshnet admin node reinstate {look.short(node)}`"
