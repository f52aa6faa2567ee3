"""`meshnet node status`: what the registry makes of a node, and what the node still has to say."""

from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from meshnet_bus.asker import QueryRefused
from meshnet_bus.outbox_file import OutboxFile, OutboxInUse
from meshnet_cli import look
from meshnet_cli.driving import asking, refused
from meshnet_cli.errors import FAILED, OK
from meshnet_cli.key_files import read_node_key
from meshnet_cli.options import OUTPUT, WHERE, NodeDir, Output, Where
from meshnet_cli.output import answer, line, pairs, table
from meshnet_cli.profile import Settings, settle
from meshnet_cli.remedies import enrol, reinstate
from meshnet_events.answers import ClaimAnswer, NodeAnswer
from meshnet_events.queries import ClaimQuery, NodeQuery
from meshnet_events.reasons import NOT_LIVE
from meshnet_node.directory import NodeDirectory

if TYPE_CHECKING:
    from rich.console import Console


class NodeStatus(Struct, frozen=True):
    """A node as a tracker knows it now, with its live claims, and its events that wait to be sent.

    `unsent` is None while another process has the outbox open: it sends them.
    """

    node: NodeAnswer
    claims: tuple[ClaimAnswer, ...]
    unsent: int | None

    @property
    def is_well(self) -> bool:
        """Whether it may speak as one node, and every claim may take part in a route."""
        return (
            self.node.may_speak
            and self.node.status != "conflict"
            and all(claim.eligible_to_certify for claim in self.claims)
        )


def status(
    *,
    directory: NodeDir = None,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> int:
    """Ask a tracker what it makes of this node: enrolled or not, and each of its live claims.

    Presence counts: a node that is not heard is not live. Events that its directory still has to send
    are counted, unless a process runs, which sends them. Exit code 1 when the node may not speak, is in
    conflict, or has a claim that may take part in no route; what to do is said.

    ```
    meshnet node status
    ```
    """
    settings = settle(where)
    node = settings.node_at(directory)
    key = read_node_key(node)
    document = anyio.run(_ask, settings, node, key.public)
    answer(output, document, lambda screen: _show(screen, document, node))
    return OK if document.is_well else FAILED


async def _ask(settings: Settings, directory: NodeDirectory, node: str) -> NodeStatus:
    unsent = await _unsent(settings, directory, node)
    async with asking(settings) as asker:
        try:
            known = await asker.ask(NodeQuery(node=node))
            claims = [
                await asker.ask(ClaimQuery(node=node, shard_id=shard_id))
                for shard_id in known.shards
            ]
        except QueryRefused as refusal:
            raise refused(refusal) from refusal
    return NodeStatus(known, tuple(claims), unsent)


async def _unsent(settings: Settings, directory: NodeDirectory, node: str) -> int | None:
    """How many events wait in the outbox; None when another process has it open."""
    if not directory.outbox.exists():
        return 0
    try:
        async with OutboxFile.open(directory.outbox, settings.need_realm(), node) as file:
            standing = await file.standing()
    except OutboxInUse:
        return None
    return 0 if standing is None else standing.pending


def _unsent_text(unsent: int | None) -> str:
    if unsent is None:
        return "a process that runs sends what there is"
    return f"{unsent}, until the node serves again" if unsent else "0"


def _advice(document: NodeStatus, directory: NodeDirectory) -> str:
    """What lifts it, where the node itself is the matter."""
    node = document.node
    if node.status in {"suspended", "conflict"}:
        return reinstate(node.node)
    return "" if node.may_speak else enrol(directory)


def _show(screen: "Console", document: NodeStatus, directory: NodeDirectory) -> None:
    node = document.node
    pairs(
        screen,
        (
            ("node", node.node),
            ("label", node.label),
            ("it is", look.status(node.status)),
            ("boot", node.boot_id or ""),
            ("events", str(node.head_issuerseq)),
            ("unsent", _unsent_text(document.unsent)),
        ),
    )
    if advice := _advice(document, directory):
        line(screen, advice)
    for claim in document.claims:
        if not claim.eligible_to_certify and set(claim.reasons) != {NOT_LIVE}:
            name = f"{look.short(node.node)}/{claim.shard_id}"
            line(screen, f"`meshnet shard why-not {name}` says what is the matter with it")
    if not document.claims:
        line(screen, f"no live claim{'' if advice else '; `meshnet node serve` registers one'}")
        return
    rows = table("shard", "layers", "recipe", "status", "because", flexible=["because"])
    for claim in document.claims:
        rows.add_row(
            claim.shard_id,
            look.layers(claim.start, claim.end),
            look.short(claim.recipe_key),
            look.status(look.claim_word(claim.status, claim.reasons)),
            look.claim_because(claim.status, claim.reasons),
        )
    screen.print(rows)
