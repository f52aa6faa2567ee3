"""The parameters that commands share, each group written once.

Output     how to print
Where      which realm, at which server
Source     where a state is read from: a file, the views, the stream
Signing    which key states a fact
NodeDir    which node speaks
ShardChoice  which layers of what are proven, under which recipe
TlsChoice  certificates for endpoints of grpcs://
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from meshnet_cli.errors import USAGE, CliError

Format = Literal["table", "json", "ndjson"]

PRESENCE_NOTE = (
    "presence is left out: whether a process runs is not in the log; "
    "a tracker hears it, and `meshnet node status` and `meshnet generate` ask one"
)
"""Under every answer that the log alone gives, and in the help of every command that gives such."""

PROFILE_VARIABLE = "MESHNET_PROFILE"
REALM_VARIABLE = "MESHNET_REALM"
NODE = Group("The node", sort_key=2)
READ = Group("What is read", sort_key=8, help=f"Of this, {PRESENCE_NOTE}.")
_SHARED = Group("Realm and output", sort_key=9)

NodeDir = Annotated[
    Path | None,
    Parameter(
        name="--dir",
        group=NODE,
        env_var="MESHNET_NODE_DIR",
        help="The node's directory. Default: the profile's.",
    ),
]


@Parameter(name="*", group=_SHARED)
@dataclass(frozen=True, kw_only=True)
class Output:
    """How to print."""

    format: Annotated[
        Format,
        Parameter(
            name=("-o", "--format"),
            env_var="MESHNET_FORMAT",
            help="A table for people, one JSON document, or one JSON value a line.",
        ),
    ] = "table"


@Parameter(name="*", group=_SHARED)
@dataclass(frozen=True, kw_only=True)
class Where:
    """Which realm is meant. What is not named here is taken from the profile."""

    realm: Annotated[str | None, Parameter(env_var=REALM_VARIABLE, help="The realm's name.")] = None
    server: Annotated[
        str | None, Parameter(env_var="MESHNET_SERVER", help="Its server, like nats://host:4222.")
    ] = None
    operator: Annotated[
        str | None,
        Parameter(
            env_var="MESHNET_OPERATOR",
            help="The key (U…) that created the realm. Another creator is refused.",
        ),
    ] = None
    profile: Annotated[
        Path | None,
        Parameter(env_var=PROFILE_VARIABLE, help="A TOML file with what is not named."),
    ] = None


@Parameter(name="*", group=_SHARED)
@dataclass(frozen=True, kw_only=True)
class Source(Where):
    """Where a state is read from: `--from`, else the views if they exist, else the stream."""

    from_: Annotated[
        Path | None,
        Parameter(
            name="--from",
            group=READ,
            help="A history in NDJSON: no server and no views are used.",
        ),
    ] = None
    views: Annotated[
        Path | None,
        Parameter(group=READ, env_var="MESHNET_VIEWS", help="A tracker's file of views."),
    ] = None


@Parameter(name="*", group=_SHARED)
@dataclass(frozen=True, kw_only=True)
class Signing(Where):
    """Which operator speaks."""

    key_file: Annotated[
        Path | None,
        Parameter(env_var="MESHNET_OPERATOR_KEY_FILE", help="The file with the operator's seed."),
    ] = None
    reason: Annotated[
        str, Parameter(help="Why, for whoever reads the log. At most 1,024 characters.")
    ] = ""


@Parameter(name="*", group=Group("Policy", sort_key=8))
@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """A policy: a file with all members, or what is to be other than in the one at hand."""

    policy: Annotated[
        Path | None, Parameter(help="A JSON file with every member, as `policy show -o json` has.")
    ] = None
    accept_declared_hosts: Annotated[
        bool | None,
        Parameter(
            negative="--no-accept-declared-hosts",
            help="Whether hosts that their owner declared count as distinct.",
        ),
    ] = None
    enrolment: Annotated[
        Literal["required", "open"] | None, Parameter(help="Whether nodes must be enrolled.")
    ] = None
    certify: Annotated[
        Literal["recipe", "seams"] | None,
        Parameter(help="Whether each seam of a serving route must be proven."),
    ] = None
    min_certifying_nodes: Annotated[int | None, Parameter(help="2 or more.")] = None
    min_distinct_hosts: Annotated[int | None, Parameter(help="1 or more.")] = None
    min_distinct_groups: Annotated[int | None, Parameter(help="1 or more.")] = None
    max_report_age_ms: Annotated[int | None, Parameter(help="How old a proof may be.")] = None
    max_clock_skew_ms: Annotated[int | None, Parameter(help="How far clocks may differ.")] = None

    def changes(self) -> dict[str, object]:
        """The members that were named."""
        return {
            name: value
            for name, value in vars(self).items()
            if name != "policy" and value is not None
        }


@Parameter(name="*", group=Group("TLS between nodes", sort_key=7))
@dataclass(frozen=True, kw_only=True)
class TlsChoice:
    """PEM files for endpoints of `grpcs://`: all three, or none."""

    tls_authority: Annotated[
        Path | None,
        Parameter(env_var="MESHNET_TLS_AUTHORITY", help="The authority that peers are signed by."),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        Parameter(env_var="MESHNET_TLS_CERTIFICATE", help="This side's certificate."),
    ] = None
    tls_key: Annotated[
        Path | None, Parameter(env_var="MESHNET_TLS_KEY", help="The certificate's key.")
    ] = None


@Parameter(name="*", group=Group("What is proven", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class ShardChoice:
    """Which layers of the model files are meant, and what is declared and expected of them."""

    manifest: Annotated[Path, Parameter(help="The recipes that this node may run, TOML.")] = Path(
        "recipes.toml"
    )
    recipe: Annotated[str | None, Parameter(help="The recipe's id, where there are several.")] = (
        None
    )
    recipe_version: Annotated[
        str | None, Parameter(help="Its version, where there are several.")
    ] = None
    backend: Annotated[str | None, Parameter(help="Its backend, where there are several.")] = None
    layers: Annotated[
        str | None, Parameter(help="Layers A:B, the last not included. Default: all held.")
    ] = None
    device: Annotated[str | None, Parameter(help="What computes. Default: the backend's best.")] = (
        None
    )
    target: Annotated[
        str | None,
        Parameter(
            help="The locked target whose files these must be: its name, or its lock's path."
        ),
    ] = None
    expect: Annotated[
        Path | None, Parameter(help="An identity or a pin, JSON, that these files must have.")
    ] = None
    artifact_id: Annotated[
        str | None,
        Parameter(help="Where it came from. Default: what is expected, or its name."),
    ] = None
    revision: Annotated[
        str | None,
        Parameter(help="The commit it came from. Default: what is expected, or its digest."),
    ] = None
    cache: Annotated[
        bool, Parameter(negative="--no-cache", help="Whether digests seen before are trusted.")
    ] = True


def parse_layers(text: str) -> tuple[int, int]:
    """The range that a person spells `A:B`, the last not included. Raises `CliError`."""
    found = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text)
    if found is None:
        raise CliError(
            f"not a range of layers: {text[:40]!r}", "expected A:B, like 0:9", code=USAGE
        )
    return int(found[1]), int(found[2])


OUTPUT = Output()
WHERE = Where()
SOURCE = Source()
SIGNING = Signing()
POLICY = PolicyChoice()
TLS = TlsChoice()
SHARD = ShardChoice()
