"""Operator facts about recipes.

| fact | rejected | noop | applied |
|---|---|---|---|
| `recipe.revoked` | unknown: `unknown-recipe` | revoked already | `revoked`; certification, proven seams and pending evidence are void |
| `recipe.reinstated` | unknown: `unknown-recipe` | not revoked | `dark`; to be certified anew |
"""  # noqa: E501 - a table's rows are lines

from meshnet_events.facts import RecipeReinstated, RecipeRevoked
from meshnet_events.reasons import UNKNOWN_RECIPE
from meshnet_tracker.registry.outcome import APPLIED, NOOP, Outcome, rejected
from meshnet_tracker.registry.state import Cause, State


def revoked(state: State, fact: RecipeRevoked, cause: Cause) -> Outcome:
    """The recipe serves nobody until it is reinstated and certified anew."""
    recipe = state.recipes.get(fact.recipe_key)
    if recipe is None:
        return rejected(UNKNOWN_RECIPE, f"no admitted claim offered {fact.recipe_key}")
    if recipe.status == "revoked":
        return NOOP
    state.clear_proof(recipe)
    state.touch_recipe(recipe)
    recipe.revoked_reason = fact.reason
    state.set_recipe_status(recipe, "revoked", cause, fact.reason)
    return APPLIED


def reinstated(state: State, fact: RecipeReinstated, cause: Cause) -> Outcome:
    """The recipe is dark again."""
    recipe = state.recipes.get(fact.recipe_key)
    if recipe is None:
        return rejected(UNKNOWN_RECIPE, f"no admitted claim offered {fact.recipe_key}")
    if recipe.status != "revoked":
        return NOOP
    state.touch_recipe(recipe)
    recipe.revoked_reason = None
    state.set_recipe_status(recipe, "dark", cause, fact.reason)
    return APPLIED
