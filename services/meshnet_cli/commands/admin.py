"""`meshnet admin`: what only an operator may state. Each command publishes one signed fact."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from msgspec import Struct

from meshnet_cli import look
from meshnet_cli.errors import USAGE, CliError, not_found
from meshnet_cli.key_files import read_request
from meshnet_cli.lookup import find_node, find_recipe
from meshnet_cli.options import (
    OUTPUT,
    POLICY,
    SIGNING,
    SOURCE,
    Output,
    PolicyChoice,
    Signing,
    Source,
)
from meshnet_cli.output import NOTHING_CHANGED, answer, footer, line, pairs
from meshnet_cli.policies import choose
from meshnet_cli.publishing import operator_key, publish, source_of
from meshnet_cli.state_source import Known, load
from meshnet_events.facts import (
    Fact,
    NodeEnrolled,
    NodeReinstated,
    NodeSuspended,
    PolicyChanged,
    RecipeReinstated,
    RecipeRevoked,
)
from meshnet_events.keys import decode_public
from meshnet_events.queries import LEAST_PREFIX
from meshnet_tracker.registry.state import State

if TYPE_CHECKING:
    from rich.console import Console

app = App(
    name="admin",
    help="""State what only an operator may: enrol, suspend, revoke, set policy.

Each command publishes one fact, signed with the operator key of the profile (or `--key-file`), waits
until the registry has decided about it, and says what it decided.

```
meshnet admin node enrol ./node/enrol.json
```
""",
)
_node = App(
    name="node",
    help="""Enrol, suspend and reinstate nodes.

```
meshnet admin node enrol ./node/enrol.json
```
""",
)
_recipe = App(
    name="recipe",
    help="""Revoke and reinstate recipes.

```
meshnet admin recipe revoke 17ae3860 --reason "wrong tokens"
```
""",
)
_policy = App(
    name="policy",
    help="""The policy in force, and a new one.

```
meshnet admin policy show
```
""",
)
for _group in (_node, _recipe, _policy):
    app.command(_group)


class Stated(Struct, frozen=True):
    """What was stated, what it is about, and whether that made a difference."""

    fact: str
    subject: str
    status: str
    changed: bool
    sequence: int
    digest: str


@_node.command
def enrol(
    node: Annotated[str, Parameter(help="A request's file (or its directory), or a key U….")],
    /,
    *,
    label: Annotated[
        str | None, Parameter(help="What to call it. By default what it asks.")
    ] = None,
    group: Annotated[
        str | None, Parameter(help="The person or organisation behind it. By default none.")
    ] = None,
    chain_from: Annotated[
        int | None,
        Parameter(help="Restart its chain here: for a node that lost its place for good."),
    ] = None,
    signing: Signing = SIGNING,
    output: Output = OUTPUT,
) -> None:
    """Let a node speak.

    A request is a file that `meshnet node init` wrote; its signature proves that whoever sent it
    holds the key. A bare key is taken at your word. Groups count when a policy asks that a route
    span several owners. A node that is enrolled already keeps the label and group that are not named.

    ```
    meshnet admin node enrol ./node/enrol.json --label rack-2 --group acme
    ```
    """
    path, proposed = Path(node), ""
    if path.exists():
        request = read_request(path)
        key, proposed = request.node, request.label
    elif decode_public(node) is not None:
        key = node
    else:
        raise not_found("node", f"{node!r} is neither a file nor a key", (), _HOW_TO_NAME)
    before = load(source_of(signing))
    row = before.state.nodes.get(key)
    is_enrolled = row is not None and row.enrolled
    if row is not None and is_enrolled:
        proposed, group = row.label, row.group if group is None else group
    label = proposed if label is None else label
    _check_label(before.state, key, label)
    fact = NodeEnrolled(chain_from=chain_from, group=group or "", label=label, node=key)
    _state(signing, fact, key, output, before, "it was enrolled already" if is_enrolled else "")


@_node.command
def suspend(
    node: Annotated[str, Parameter(help="A label, or 8 characters or more of a key.")],
    /,
    *,
    signing: Signing = SIGNING,
    output: Output = OUTPUT,
) -> None:
    """Take a node's word away, and end all its claims.

    Nothing comes back by itself: after `reinstate` its processes must restart and register anew.

    ```
    meshnet admin node suspend rack-2 --reason "answers differ from its peers"
    ```
    """
    before = load(source_of(signing))
    key = find_node(before.state, node).node
    _state(signing, NodeSuspended(node=key, reason=signing.reason), key, output, before)


@_node.command(name="reinstate")
def reinstate_node(
    node: Annotated[str, Parameter(help="A label, or 8 characters or more of a key.")],
    /,
    *,
    signing: Signing = SIGNING,
    output: Output = OUTPUT,
) -> None:
    """Lift a node's suspension or conflict.

    A conflict means that two hosts used one key. Whichever process registers first afterwards holds
    it, so stop the wrong one before.

    ```
    meshnet admin node reinstate rack-2 --reason "disk replaced"
    ```
    """
    before = load(source_of(signing))
    key = find_node(before.state, node).node
    _state(signing, NodeReinstated(node=key, reason=signing.reason), key, output, before)


@_recipe.command
def revoke(
    key: Annotated[str, Parameter(help="8 characters or more of a recipe key.")],
    /,
    *,
    signing: Signing = SIGNING,
    output: Output = OUTPUT,
) -> None:
    """Take a recipe out of service. Its proven seams are void.

    ```
    meshnet admin recipe revoke 17ae3860 --reason "wrong tokens at seam 9"
    ```
    """
    before = load(source_of(signing))
    recipe = find_recipe(before.state, key).recipe_key
    fact = RecipeRevoked(reason=signing.reason, recipe_key=recipe)
    _state(signing, fact, recipe, output, before)


@_recipe.command(name="reinstate")
def reinstate_recipe(
    key: Annotated[str, Parameter(help="8 characters or more of a recipe key.")],
    /,
    *,
    signing: Signing = SIGNING,
    output: Output = OUTPUT,
) -> None:
    """Bring a revoked recipe back, dark: it must be certified anew.

    ```
    meshnet admin recipe reinstate 17ae3860 --reason "backend fixed in b7422"
    ```
    """
    before = load(source_of(signing))
    recipe = find_recipe(before.state, key).recipe_key
    fact = RecipeReinstated(reason=signing.reason, recipe_key=recipe)
    _state(signing, fact, recipe, output, before)


@_policy.command(name="show")
def show_policy(*, source: Source = SOURCE, output: Output = OUTPUT) -> None:
    """Show the policy in force: what is asked of proofs, evidence and routes.

    With `-o json` it is the file that `set --policy` takes.

    ```
    meshnet admin policy show -o json > policy.json
    ```
    """
    known = load(source)
    policy = known.state.policy

    def people(screen: "Console") -> None:
        pairs(screen, ((name, str(getattr(policy, name))) for name in policy.__struct_fields__))
        since = known.state.realm.policy_sequence if known.state.realm else 0
        footer(screen, f"in force since sequence {since}; {known.footer()}")

    answer(output, policy, people)


@_policy.command(name="set")
def set_policy(
    *, policy: PolicyChoice = POLICY, signing: Signing = SIGNING, output: Output = OUTPUT
) -> None:
    """Put a policy in force for later records. What was decided stays decided.

    Members that are not named stay as they are.

    ```
    meshnet admin policy set --min-distinct-groups 2 --reason "two owners"
    ```
    """
    if policy == POLICY:
        raise CliError(
            "no member of the policy is named", "see `meshnet admin policy set --help`", code=USAGE
        )
    before = load(source_of(signing))
    fact = PolicyChanged(policy=choose(policy, before.state.policy), reason=signing.reason)
    _state(signing, fact, "policy", output, before)


def _state(
    signing: Signing, fact: Fact, subject: str, output: Output, before: Known, more: str = ""
) -> None:
    """Publish an operator's fact and say what became of what it is about, and `more`."""
    published, known = publish(signing, operator_key(signing), fact)
    status = _status_of(known, subject)
    changed = _row(known, subject) != _row(before, subject)
    document = Stated(fact.NAME, subject, status, changed, published.sequence, published.digest)

    def people(screen: "Console") -> None:
        line(screen, f"{fact.NAME} is stored at sequence {published.sequence}")
        said = look.status(status, more="" if changed else NOTHING_CHANGED)
        line(screen, f"{look.short(subject)} is ", said)
        if more:
            line(screen, more)
        if isinstance(fact, NodeEnrolled) and status != "enrolled":
            line(screen, "enrolling does not lift that; when it is time, run:")
            line(screen, f"  meshnet admin node reinstate {look.short(subject)}")

    answer(output, document, people)


def _check_label(state: State, key: str, label: str) -> None:
    """Refuse a label by which people would mean another node, or that they could not type."""
    if not label.isprintable():
        raise CliError(
            f"the label {label!r} holds what cannot be printed",
            "name another with --label; nothing was published",
            code=USAGE,
        )
    if _looks_like_a_key(label):
        raise CliError(
            f"the label {label!r} looks like a key, and would be taken for one",
            "name another with --label; nothing was published",
            code=USAGE,
        )
    holders = [row.node for row in state.nodes.values() if row.label == label and row.node != key]
    if label and holders:
        raise CliError(
            f"{label!r} is the label of {holders[0]}",
            "name another with --label; nothing was published",
        )


_HOW_TO_NAME = "name the `enrol.json` that `meshnet node init` wrote, or a key of 56 characters: U…"
_looks_like_a_key = re.compile(rf"U[A-Z2-7]{{{LEAST_PREFIX - 1},}}").fullmatch


def _row(known: Known, subject: str) -> object:
    """What the state holds about the subject of a fact."""
    state = known.state
    return state.nodes.get(subject) or state.recipes.get(subject) or state.policy


def _status_of(known: Known, subject: str) -> str:
    state = known.state
    if subject in state.nodes:
        return state.nodes[subject].status
    if subject in state.recipes:
        return state.recipes[subject].status
    return "in force"
