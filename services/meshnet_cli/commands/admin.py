"""`meshnet admin`: what only an operator may state. Each command publishes one signed fact."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from msgspec import Struct

from meshnet_cli.errors import CliError, not_found
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
from meshnet_cli.output import answer, line, pairs
from meshnet_cli.policies import choose
from meshnet_cli.publishing import operator_key, publish, source_of
from meshnet_cli.state_source import Known, load
from meshnet_events.facts import (
    Fact,
    NodeEnrolled,
    NodeReinstated,
    NodeSuspended,
    Policy,
    PolicyChanged,
    RecipeReinstated,
    RecipeRevoked,
)
from meshnet_events.keys import decode_public

if TYPE_CHECKING:
    from rich.console import Console

app = App(
    name="admin",
    help="""State what only an operator may: enrol, suspend, revoke, set policy.

Each command publishes one fact, signed with the operator key of the profile (or `--key-file`), waits
until the registry has decided about it, and says what it decided.
""",
)
_node = App(name="node", help="Enrol, suspend and reinstate nodes.")
_recipe = App(name="recipe", help="Revoke and reinstate recipes.")
_policy = App(name="policy", help="The policy in force, and a new one.")
for _group in (_node, _recipe, _policy):
    app.command(_group)


class Stated(Struct, frozen=True):
    """What was stated, where it is stored, and what it is about."""

    fact: str
    subject: str
    status: str
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
    group: Annotated[str, Parameter(help="The person or organisation behind it.")] = "",
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
    span several owners.

    ```
    meshnet admin node enrol ./node/enrol.json --label rack-2 --group acme
    ```
    """
    path = Path(node)
    if path.exists():
        request = read_request(path)
        key, label = request.node, request.label if label is None else label
    elif decode_public(node) is not None:
        key = node
    else:
        raise not_found(
            "node", f"{node!r} is neither a file nor a key", (), "a key has 56 characters: U…"
        )
    fact = NodeEnrolled(chain_from=chain_from, group=group, label=label or "", node=key)
    _state(signing, fact, key, output)


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
    key = find_node(load(source_of(signing)).state, node).node
    _state(signing, NodeSuspended(node=key, reason=signing.reason), key, output)


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
    key = find_node(load(source_of(signing)).state, node).node
    _state(signing, NodeReinstated(node=key, reason=signing.reason), key, output)


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
    recipe = find_recipe(load(source_of(signing)).state, key).recipe_key
    _state(signing, RecipeRevoked(reason=signing.reason, recipe_key=recipe), recipe, output)


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
    recipe = find_recipe(load(source_of(signing)).state, key).recipe_key
    _state(signing, RecipeReinstated(reason=signing.reason, recipe_key=recipe), recipe, output)


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
        line(screen, f"in force since sequence {since}; {known.footer()}")

    answer(output, policy, people)


@_policy.command(name="set")
def set_policy(
    *, policy: PolicyChoice = POLICY, signing: Signing = SIGNING, output: Output = OUTPUT
) -> None:
    """Put a policy in force for later records. What was decided stays decided.

    Members that are not named stay as they are.

    ```
    meshnet admin policy set --min-distinct-groups 2 --reason "two owners at least"
    ```
    """
    if policy == POLICY:
        raise CliError("no member of the policy is named", "see `meshnet admin policy set --help`")
    current: Policy = load(source_of(signing)).state.policy
    chosen = choose(policy, current)
    _state(signing, PolicyChanged(policy=chosen, reason=signing.reason), "policy", output)


def _state(signing: Signing, fact: Fact, subject: str, output: Output) -> None:
    """Publish an operator's fact and say what became of what it is about."""
    published, known = publish(signing, operator_key(signing), fact)
    status = _status_of(known, subject)
    document = Stated(fact.NAME, subject, status, published.sequence, published.digest)

    def people(screen: "Console") -> None:
        said = f"{fact.NAME} is stored at sequence {published.sequence}"
        line(screen, f"{said}; {subject} is {status}")

    answer(output, document, people)


def _status_of(known: Known, subject: str) -> str:
    state = known.state
    if subject in state.nodes:
        return state.nodes[subject].status
    if subject in state.recipes:
        return state.recipes[subject].status
    return "in force"
