"""Every subject and stream name, spelled once.

    mesh.<realm>.evt.<issuer>        events, the only subjects in the realm's stream
    mesh.<realm>.live.<issuer>       the stream's republish: a wake-up, never evidence
    mesh.<realm>.presence.<issuer>   liveness, outside the log
    mesh.<realm>.api.<name>          what a tracker is asked: `queries`
    MESH_<realm>                     the stream

A realm matches `[a-z][a-z0-9-]{0,31}`, so it can hold neither a dot nor a wildcard.
"""

import re

REALM_PATTERN = "[a-z][a-z0-9-]{0,31}"
_REALM = re.compile(REALM_PATTERN)


def is_realm(text: str) -> bool:
    """Tell whether `text` is a realm's name."""
    return _REALM.fullmatch(text) is not None


def check_realm(text: str) -> str:
    """Return `text`, or raise ValueError that says what a realm's name looks like."""
    if not is_realm(text):
        raise ValueError(
            f"not a realm name: {text[:40]!r}; expected a lower-case letter, then up to 31 "
            "lower-case letters, digits or hyphens"
        )
    return text


def stream(realm: str) -> str:
    """Name of the realm's one stream."""
    return f"MESH_{realm}"


def event(realm: str, issuer: str) -> str:
    """Where `issuer` publishes its events."""
    return f"mesh.{realm}.evt.{issuer}"


def live(realm: str, issuer: str) -> str:
    """Where the stream republishes an issuer's events: a wake-up, never evidence."""
    return f"mesh.{realm}.live.{issuer}"


def presence(realm: str, issuer: str) -> str:
    """Where `issuer` says that it is alive."""
    return f"mesh.{realm}.presence.{issuer}"


def query(realm: str, name: str) -> str:
    """Where a tracker is asked the query called `name`."""
    return f"mesh.{realm}.api.{name}"
