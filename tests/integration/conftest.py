"""A real nats-server for each test, a client on it, and a realm's empty stream."""

import pytest

from bus_kit import REALM, client
from meshnet_bus.client import closing
from meshnet_bus.local_server import LocalServer
from meshnet_bus.stream import provision


@pytest.fixture
async def server(tmp_path):
    # a killed server loses nothing that it wrote: only a killed machine needs the slower "always"
    async with LocalServer(tmp_path / "nats", sync="2m") as running:
        yield running


@pytest.fixture
async def nc(server):
    async with closing(await client(server)) as connected:
        yield connected


@pytest.fixture
async def realm(nc):
    await provision(nc, REALM)
    return REALM
