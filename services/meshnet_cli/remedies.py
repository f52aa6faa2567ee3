"""What lifts what is in the way, and with which command: the same words wherever somebody meets it."""

from collections.abc import Iterable

from meshnet_cli import look
from meshnet_events import reasons as codes
from meshnet_node.directory import NodeDirectory


def enrol(directory: NodeDirectory) -> str:
    """What lets a node speak that nobody has enrolled."""
    return f"an operator must run `meshnet admin node enrol {directory.enrolment}`"


def reinstate(node: str) -> str:
    """What ends a suspension or a conflict."""
    return f"an operator must run `meshnet admin node reinstate {look.short(node)}`"


_FOR_A_ROUTE = {
    codes.UNKNOWN_RECIPE: "it becomes known when a node serves a shard of it: `meshnet node serve`",
    codes.REVOKED: "an operator must run `meshnet admin recipe reinstate {recipe}`",
    codes.NOT_CERTIFIED: "a node must run `meshnet node certify --recipe {recipe}`",
    codes.RANGE: "a node must serve the missing layers: `meshnet node serve --layers A:B`",
    codes.SEAM: "a node must run `meshnet node certify --recipe {recipe}`, which proves seams",
    codes.HANDSHAKE: "both try again by themselves, after a minute to an hour; their output says what "
    "differs",
    codes.NODES: "more nodes must serve, each some of the layers: `meshnet node serve --layers A:B`",
    codes.HOSTS: "nodes on other machines must serve some of the layers. To try it on one, an operator\n"
    "runs `meshnet admin policy set --accept-declared-hosts`, and nodes take --declared-host",
    codes.GROUPS: "an operator says whose a node is: `meshnet admin node enrol KEY --group NAME`",
}
_SILENT = "start the processes that are silent, and see that they reach the server"


def for_a_route(
    obstacles: Iterable[str], recipe_key: str, excluded: Iterable[str] = ()
) -> tuple[str, ...]:
    """What would make a route possible, by the codes of what is in its way, line by line.

    While nodes are silent that comes first: whatever else is missing may be theirs.
    """
    found = tuple(obstacles)
    if codes.NOT_LIVE in found:
        return (_SILENT,)
    recipe = look.short(recipe_key)
    helps = [_FOR_A_ROUTE[code].format(recipe=recipe) for code in found if code in _FOR_A_ROUTE]
    if left_out := ", ".join(look.short(node) for node in sorted(excluded)):
        helps.append(f"or go without leaving out {left_out}")
    return tuple(line for text in helps for line in text.split("\n"))
