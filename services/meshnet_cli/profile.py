"""What is meant when nothing is named: flags over environment over a TOML file.

    realm = "demo"
    server = "nats://127.0.0.1:21873"
    operator = "UCGB…"                     the key that created the realm: root of trust
    operator_key_file = "operator.key"     only where the operator works
    views = "views.db"                     a tracker's views, read instead of the stream
    node_directory = "node"                where `meshnet node init` keeps a node's key

Every member is optional. A path that is not absolute starts at the file's own folder. The file is the
one that `--profile` or `MESHNET_PROFILE` names, else `profile.toml` in the user's folder for
configuration; only a file that was named has to exist. (cyclopts puts flags over environment.)
"""

import json
import os
import tomllib
from pathlib import Path

import msgspec
import platformdirs
from msgspec import Struct

from meshnet_cli.errors import NOT_FOUND, USAGE, CliError
from meshnet_cli.options import PROFILE_VARIABLE, Where
from meshnet_node.directory import NodeDirectory
from meshnet_node.files import read_file, replace_file

_MAX_PROFILE_BYTES = 65_536


class Profile(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A profile file's members."""

    realm: str | None = None
    server: str | None = None
    operator: str | None = None
    operator_key_file: Path | None = None
    views: Path | None = None
    node_directory: Path | None = None


def default_path() -> Path:
    """The user's own profile."""
    return platformdirs.user_config_path("meshnet") / "profile.toml"


def said_by(variable: str, value: str | Path) -> bool:
    """Whether it is an environment variable that says `value`: whoever set it may not think of it."""
    said = os.environ.get(variable)
    return said is not None and type(value)(said) == value


def read_profile(path: Path | None) -> Profile:
    """The profile at `path`, which must exist, or the user's own if there is one."""
    named = path is not None
    path = path or default_path()
    try:
        stated = tomllib.loads(read_file(path, "profile", most_bytes=_MAX_PROFILE_BYTES).decode())
        profile = msgspec.convert(stated, Profile, dec_hook=_to_path)
    except FileNotFoundError:
        if not named:
            return Profile()
        advice = "`meshnet up` writes one"
        if said_by(PROFILE_VARIABLE, path):
            advice += f"; {PROFILE_VARIABLE} names this one: give it the whole path, or unset it"
        raise CliError(f"there is no profile {path}", advice, code=NOT_FOUND) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are ValueErrors
        raise CliError(f"{path} is no profile: {error}", f"members: {_MEMBERS}") from error
    folder = path.resolve().parent
    return msgspec.structs.replace(
        profile,
        **{
            name: folder / found for name in _PATHS if (found := getattr(profile, name)) is not None
        },
    )


_PATHS = ("operator_key_file", "views", "node_directory")
_MEMBERS = ", ".join(Profile.__struct_fields__)


def _to_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"no {kind}")


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, whole or not at all. Its texts hold no character that TOML and JSON differ on."""
    lines = [
        f"{name} = {json.dumps(str(value), ensure_ascii=False)}\n"
        for name in Profile.__struct_fields__
        if (value := getattr(profile, name)) is not None
    ]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, "".join(lines).encode())


class Settings(Struct, frozen=True):
    """What a command was told, put over what its profile says."""

    realm: str | None
    server: str | None
    operator: str | None
    operator_key_file: Path | None
    views: Path | None
    node_directory: Path

    def node_at(self, named: Path | None) -> NodeDirectory:
        """The directory of the node that is meant: the named one, else the profile's."""
        return NodeDirectory(named or self.node_directory)

    def need_realm(self) -> str:
        """The realm's name, or an error that says how to name it."""
        if self.realm is None:
            raise CliError(
                "no realm is named",
                "name it with --realm, MESHNET_REALM or a profile (`meshnet up` writes one)",
                code=USAGE,
            )
        return self.realm

    def need_server(self) -> str:
        """The server's address, or an error that says how to name it."""
        if self.server is None:
            raise CliError(
                "no server is named",
                "name it with --server, MESHNET_SERVER or a profile (`meshnet up` writes one)",
                code=USAGE,
            )
        return self.server


def settle(where: Where, *, realm: str | None = None) -> Settings:
    """Settle what is meant; `realm` is the one that a history is about. Raises `CliError`.

    A profile of another realm says nothing of this one's keys and views, and views are not asked
    about a server that was named in the profile's stead.
    """
    from meshnet_events.keys import decode_public
    from meshnet_events.subjects import check_realm

    profile = read_profile(where.profile)
    realm = where.realm or realm or profile.realm
    if profile.realm not in {None, realm}:
        profile = Profile(server=profile.server, node_directory=profile.node_directory)
    operator = where.operator or profile.operator
    if realm is not None:
        try:
            check_realm(realm)
        except ValueError as error:
            raise CliError(str(error), code=USAGE) from error
    if operator is not None and decode_public(operator) is None:
        raise CliError(
            f"not an operator's key: {operator[:56]!r}",
            "expected the public key, 56 characters starting with U",
            code=USAGE,
        )
    return Settings(
        realm=realm,
        server=where.server or profile.server,
        operator=operator,
        operator_key_file=profile.operator_key_file,
        views=profile.views if where.server in {None, profile.server} else None,
        node_directory=profile.node_directory or platformdirs.user_data_path("meshnet") / "node",
    )
