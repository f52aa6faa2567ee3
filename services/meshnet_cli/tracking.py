"""A tracker in this process: whoever has a projector lets it answer queries, as `up` and the demo do."""

import time

from anyio.abc import TaskGroup

from meshnet_bus.api import StreamApi
from meshnet_bus.client import SafeClient
from meshnet_bus.presence import listen_presence
from meshnet_bus.service import QueryService
from meshnet_tracker.api.nats import TrackerApi
from meshnet_tracker.presence import PresenceOverlay, boots_in
from meshnet_tracker.projector import Projector


async def serve_queries(tasks: TaskGroup, projector: Projector, nc: SafeClient, realm: str) -> None:
    """Listen to who is alive, then answer queries: it is so from when this returns."""
    overlay = PresenceOverlay(boots_in(lambda: projector.state), time.monotonic)
    await tasks.start(listen_presence, nc, realm, overlay.hear)
    api = TrackerApi(projector, StreamApi(nc, realm), liveness=overlay)
    await tasks.start(QueryService(nc, realm, api.answer).run)
