"""Who created a realm, as its stream says and the signature of its first record proves.

Whoever was told an operator's key must not take part in a realm of the same name that somebody else
made. A tracker or auditor checks that as it folds; this is for those who only ask or publish.
"""

from meshnet_bus.api import StreamApi
from meshnet_bus.client import SafeClient
from meshnet_events.facts import RealmCreated
from meshnet_events.gate import Gate
from meshnet_events.screened import Event


class WrongRoot(Exception):
    """The realm was created by another key than the one that we were told."""


async def check_root(nc: SafeClient, realm: str, operator: str) -> None:
    """Raise `WrongRoot` unless the realm's first record is its creation by `operator`.

    Raises `ApiError` where there is no such realm, and `Unreachable`.
    """
    record = await StreamApi(nc, realm).leader_record(1)
    event = None if record is None else Gate(realm).screen(record.body, record.subject).verified()
    if not isinstance(event, Event) or not isinstance(event.data, RealmCreated):
        raise WrongRoot(
            f"the realm {realm!r} at this server does not begin with its creation, so nobody knows "
            f"whose it is; expected {operator}"
        )
    if event.issuer != operator:
        raise WrongRoot(f"the realm {realm!r} was created by {event.issuer}; expected {operator}")
