"""What people type to what it names: recipe keys by prefix, nodes by label or prefix, shards.

A prefix has 8 characters or more and fits exactly one. What fits none or several is an error that
lists what there is (exit code 5).
"""

from collections.abc import Iterable

from meshnet_cli import look
from meshnet_cli.errors import not_found
from meshnet_events.queries import LEAST_PREFIX
from meshnet_tracker.registry.explain import name_of
from meshnet_tracker.registry.rows import Claim, Node, Recipe
from meshnet_tracker.registry.state import State


def find_recipe(state: State, text: str) -> Recipe:
    """The recipe whose key begins with `text`."""
    wanted = text.lower()
    listed = [f"{key}  {recipe.status}" for key, recipe in sorted(state.recipes.items())]
    if len(wanted) < LEAST_PREFIX:
        raise not_found(
            "recipe", f"{text!r} is too short: give {LEAST_PREFIX} characters or more", listed
        )
    found = [recipe for key, recipe in state.recipes.items() if key.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        keys = sorted(recipe.recipe_key for recipe in found)
        raise not_found("recipe", f"{text!r} fits {len(found)}", keys, "give more of the key")
    raise not_found(
        "recipe",
        f"no admitted claim offered {text!r}" + (", but these are known:" if listed else ""),
        listed,
        "" if listed else "a recipe becomes known when a node registers a shard of it",
    )


def called(state: State, node: str) -> str:
    """A node as it is shown: its label, which others wrote, cannot steer a terminal."""
    return look.one_line(name_of(state, node))


def find_node(state: State, text: str) -> Node:
    """The node whose key is `text`; else the one so labelled; else the one whose key begins so.

    A whole key goes first: nobody can take a node's name by a label that is its key.
    """
    if (whole := state.nodes.get(text)) is not None:
        return whole
    beginning = text.removesuffix("…")
    labelled = [node for node in state.nodes.values() if node.label == text]
    found = labelled or [
        node
        for key, node in state.nodes.items()
        if len(beginning) >= LEAST_PREFIX and key.startswith(beginning)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise not_found(
            "node", f"{text!r} fits {len(found)}", _listed(found), "name it by more of its key"
        )
    known = [node for node in state.nodes.values() if node.status != "not-enrolled"]
    raise not_found(
        "node",
        f"none has the label or key {text!r}" + (", but these are known:" if known else ""),
        _listed(known),
        f"give a label, or {LEAST_PREFIX} characters or more of a key",
    )


def find_claim(state: State, text: str) -> Claim:
    """The newest registration of `NODE/SHARD`; of `NODE` alone, where it has but one."""
    name, _, shard_id = text.partition("/")
    node = find_node(state, name)
    claims = state.claims.get(node.node, {})
    listed = [f"{name}/{claim.shard_id}  {claim.status}" for claim in claims.values()]
    if shard_id and shard_id in claims:
        return claims[shard_id]
    if not shard_id and len(claims) == 1:
        return next(iter(claims.values()))
    wanted = f"{name} registered no shard" + (f" {shard_id!r}" if shard_id else "")
    if listed and not shard_id:
        raise not_found("shard", f"{name} has {len(listed)}", listed, "name one of them")
    raise not_found("shard", wanted, listed, "`meshnet shard list` shows every shard")


def _listed(nodes: Iterable[Node]) -> list[str]:
    return sorted(f"{node.node}  {node.label}".rstrip() for node in nodes)
