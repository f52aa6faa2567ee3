"""Claims as a table, the same wherever they are listed: by recipe, then in the order of their layers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshnet_auditor.replay import ClaimReport
from meshnet_cli import look
from meshnet_cli.lookup import called
from meshnet_cli.output import table
from meshnet_tracker.registry.state import State

if TYPE_CHECKING:
    from rich.table import Table

_NAME = 24


def claims_table(state: State, claims: Iterable[ClaimReport]) -> "Table":
    """A row for each claim: whose it is, its layers, and whether a route may use it.

    "because" says what its status does not.
    """
    rows = table("node/shard", "layers", "recipe", "status", "because", flexible=["because"])
    for claim in sorted(claims, key=_place):
        rows.add_row(
            look.fitted(f"{called(state, claim.node)}/{claim.shard_id}", _NAME),
            look.layers(claim.start, claim.end),
            look.short(claim.recipe_key),
            look.status(look.claim_word(claim.status, claim.reasons)),
            claim.refusal or look.claim_because(claim.status, claim.reasons),
        )
    return rows


def _place(claim: ClaimReport) -> tuple[str, bool, int, int, str, str]:
    """What rows are sorted by; those without a sound identity have neither recipe nor layers."""
    start, end = claim.start, claim.end
    return (
        claim.recipe_key or "~",
        start is None,
        start or 0,
        end or 0,
        claim.node,
        claim.shard_id,
    )
