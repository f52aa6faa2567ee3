"""`meshnet node status`: what the registry makes of a node, and what the node still has to say."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter
from msgspec import Struct

from meshnet_bus.service import QueryRefused
from meshnet_cli import look
from meshnet_cli.driving import asking, refused
from meshnet_cli.errors import FAILED, OK
from meshnet_cli.key_files import read_key
from meshnet_cli.options import OUTPUT, WHERE, Output, Where
from meshnet_cli.output import answer, line, pairs, table
from meshnet_cli.profile import Settings, settle
from meshnet_events.queries import ClaimAnswer, ClaimQuery, NodeAnswer, NodeQuery

if TYPE_CHECKING:
    from rich.console import Console


class NodeStatus(Struct, frozen=True):
    """A node as a tracker knows it now, with its live claims."""

    node: NodeAnswer
    claims: tuple[ClaimAnswer, ...]

    @property
    def is_well(self) -> bool:
        """Whether it may speak and every claim may take part in a route."""
        return self.node.may_speak and all(claim.eligible_to_certify for claim in self.claims)


def status(
    *,
    directory: Annotated[
        Path | None,
        Parameter(
            name="--dir",
            env_var="MESHNET_NODE_DIR",
            help="The node's directory. Default: the profile's.",
        ),
    ] = None,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> int:
    """Ask a tracker what it makes of this node: enrolled or not, and each of its live claims.

    Presence counts: a node that is not heard is not live. Exit code 1 when the node may not speak, or
    a claim of it may take part in no route.

    ```
    meshnet node status
    ```
    """
    settings = settle(where)
    key = read_key(
        (directory or settings.node_directory) / "node.key",
        "node key",
        advice="make one with `meshnet node init`, or name its directory with --dir",
    )
    document = anyio.run(_ask, settings, key.public)
    answer(output, document, lambda screen: _show(screen, document))
    return OK if document.is_well else FAILED


async def _ask(settings: Settings, node: str) -> NodeStatus:
    async with asking(settings) as asker:
        try:
            known = await asker.ask(NodeQuery(node=node))
            claims = [
                await asker.ask(ClaimQuery(node=node, shard_id=shard_id))
                for shard_id in known.shards
            ]
        except QueryRefused as refusal:
            raise refused(refusal) from refusal
    return NodeStatus(known, tuple(claims))


def _show(screen: "Console", document: NodeStatus) -> None:
    node = document.node
    pairs(
        screen,
        (
            ("node", node.node),
            ("label", node.label),
            ("it is", look.status(node.status)),
            ("boot", node.boot_id or ""),
            ("events", str(node.head_issuerseq)),
        ),
    )
    if not document.claims:
        line(screen, "no live claim; `meshnet node serve` registers one")
        return
    rows = table("shard", "layers", "recipe", "status", "because", flexible=["because"])
    for claim in document.claims:
        rows.add_row(
            claim.shard_id,
            look.layers(claim.start, claim.end),
            look.short(claim.recipe_key),
            look.status(look.claim_word(claim.status, claim.reasons)),
            ", ".join(claim.reasons),
        )
    screen.print(rows)
