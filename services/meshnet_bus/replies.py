"""Where an answer may go: the one place from which anything is sent to a subject that others chose.

A reply subject is the asker's choice, and a tracker must not be made to speak where its word would
be taken for something else: not where records, presence or queries live, nor to the server's own API.
Nor does an answer carry a header, whatever the question had: nats-py's own `Msg.respond` echoes them.
"""

import logging

from nats.errors import Error as NatsError

from meshnet_bus.client import SafeClient

_log = logging.getLogger("meshnet_bus")


async def respond(nc: SafeClient, reply: str, body: bytes) -> None:
    """Send `body` to `reply` if an answer may go there. Whoever heard none asks again."""
    if not _may_be_answered(reply):
        _log.debug("no answer goes to %r", reply[:80])
        return
    try:
        await nc.publish(reply, body)
    except (NatsError, OSError) as error:
        # a reply subject that is none, or no connection
        _log.debug("the answer to %r was not sent: %r", reply[:80], error)


def _may_be_answered(reply: str) -> bool:
    first = reply.partition(".")[0]
    return bool(reply) and first != "mesh" and not reply.startswith("$") and "\ufffd" not in reply
