"""Presence on the bus: a node sends it, a tracker hears everybody's (`meshnet_events.presence`).

Over core NATS on `mesh.<realm>.presence.<issuer>`: nothing is stored, and what nobody hears is gone.
The issuer is the subject's last token; that only its owner can publish there is for the server's
permissions to see to.

A tracker hears every node every few seconds, so it listens through a tap: no message object, queue or
task for each. Whatever is no presence, or is said in the name of no key, is passed over in silence.
"""

from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus
from nats.errors import Error as NatsError

from meshnet_bus.client import SafeClient, Unreachable
from meshnet_events import subjects
from meshnet_events.envelope import canonical
from meshnet_events.forms import is_key
from meshnet_events.presence import Presence, decode_presence

SEND_EVERY_S = 5.0
"""How often a node sends it."""
_LOOK_EVERY_S = 0.25
_STOP_TIMEOUT_S = 1.0

Heard = Callable[[str, Presence], None]
"""What is done with the presence of an issuer, in the read loop. It is quick and does not raise."""


async def send_presence(nc: SafeClient, realm: str, issuer: str, presence: Presence) -> None:
    """Say once that `issuer` is alive. Raises `Unreachable` when there is no connection.

    It is not kept for later: by then it may no longer be so.
    """
    if not nc.is_connected:
        raise Unreachable("not connected, so nobody hears that this node is alive")
    subject = subjects.presence(realm, issuer)
    try:
        await nc.publish(subject, canonical(presence))
    except (NatsError, OSError) as error:
        raise Unreachable(f"{subject}: {error or repr(error)}") from error


async def listen_presence(
    nc: SafeClient,
    realm: str,
    heard: Heard,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Hear everybody until cancelled; started once the server knows of it.

    A lost connection is waited out. Raises `Unreachable` when the client was closed for good.
    """

    def deliver(subject: bytes, _reply: bytes, body: bytes, _headers: bytes) -> None:
        presence = decode_presence(body)
        if presence is None:
            return
        issuer = subject[subject.rfind(b".") + 1 :].decode("ascii", "replace")
        if is_key(issuer):
            heard(issuer, presence)

    told = False
    while True:
        while not nc.is_connected:
            if nc.is_closed:
                raise Unreachable("the client is closed, so nobody's presence is heard")
            await anyio.sleep(_LOOK_EVERY_S)
        lost = anyio.Event()
        try:
            handle = await nc.tap(subjects.presence(realm, "*"), deliver, lost.set)
        except NatsError:
            continue  # lost again between the two
        try:
            if not told:
                await nc.flush()
                await nc.flush()  # the first overtakes a queued subscription
                task_status.started()
                told = True
            await lost.wait()
        except NatsError:
            continue
        finally:
            with anyio.move_on_after(_STOP_TIMEOUT_S, shield=True):
                await nc.untap(handle)
