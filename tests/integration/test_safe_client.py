"""The client survives what peers, servers and our own callbacks do to it."""

import asyncio
import ssl
import time
from contextlib import suppress

import anyio
import pytest
import trustme
from nats.errors import FlushTimeoutError, ProtocolError

from bus_kit import client, fill, until, wire
from meshnet_bus.api import StreamApi
from meshnet_bus.client import SafeClient, Unreachable, close, closing, connect
from meshnet_bus.protocol import SafeParser

BROKEN_HEADERS = [
    b"NATS/1.0\r\nno colon at all\r\n\r\n",
    b"NATS/1.0\r\n: no name\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: \xc3\x28\r\n\r\n",
    b"NATS/1.0\r\nStatus: 503\r\nDescription: not yours\r\n\r\n",
    b"NATS/1.0\r\n\x00\x0b\x0c: \x1b[31m\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 9x9 what\r\n\r\n",
    b"NATS/1.0\xff\r\nA:b\r\n\r\n",
    b"\xff\r\n\r\n",
]


async def received_through(nc, subject, body, **parts):
    """Publish raw bytes; what a subscriber of the same connection got, and a plain message after it."""
    got = []

    async def note(message):
        got.append(message)

    await nc.subscribe("t.>", cb=note)
    await nc.flush()
    await nc.flush()  # the first overtakes the subscription
    await wire(nc, subject, body, **parts)
    await nc.publish("t.after", b"fine")
    await until(lambda: got and got[-1].data == b"fine")
    return got[0]


@pytest.mark.parametrize("headers", BROKEN_HEADERS)
async def test_no_header_bytes_end_the_read_loop(nc, headers):
    message = await received_through(nc, b"t.x", b"body", headers=headers)
    assert message.data == b"body"


@pytest.mark.parametrize("reply", [b"\xff\xfe", b"r\x0bs", b"r\x0cs", b"\x00", b"\xed\xa0\x80"])
async def test_no_reply_bytes_end_the_read_loop(nc, reply):
    message = await received_through(nc, b"t.x", b"body", reply=reply)
    assert message.data == b"body"
    assert message.reply


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (b"t.\xff\xfe", "t.\ufffd\ufffd"),
        (b"t.\xe2\x82x", "t.\ufffd\ufffdx"),
        (b"t.a\x0bb", "t.a\x0bb"),
        (b"t.a\x0c1", "t.a\x0c1"),
        ("t.é".encode(), "t.é"),
    ],
)
async def test_no_subject_bytes_end_the_read_loop(nc, subject, text):
    assert (await received_through(nc, subject, b"body")).subject == text


async def test_a_header_named_status_is_not_a_status(nc, realm):
    headers = b"NATS/1.0\r\nStatus: 404\r\nDescription: gone\r\n\r\n"
    await wire(nc, b"mesh.demo.evt.U", b"body", headers=headers)
    await fill(nc, 1)
    record = await StreamApi(nc, realm).direct_record(1)
    assert record.body == b"body"


async def test_the_servers_headers_count_and_not_the_publishers(nc, realm):
    headers = (
        b"NATS/1.0\r\nNats-Sequence: 77\r\nNats-Subject: mesh.demo.evt.OTHER\r\n"
        b"Nats-Time-Stamp: 2001-01-01T00:00:00Z\r\n\r\n"
    )
    await wire(nc, b"mesh.demo.evt.U", b"body", headers=headers)
    await fill(nc, 1)
    api = StreamApi(nc, realm)
    direct, leader = await api.direct_record(1), await api.leader_record(1)
    assert direct == leader
    assert (direct.sequence, direct.subject) == (1, "mesh.demo.evt.U")
    assert abs(direct.time_ns - time.time_ns()) < 60_000_000_000


@pytest.mark.parametrize("subject", [b"mesh.demo.evt.\xff\xfe", b"mesh.demo.evt.\xe2\x82A"])
async def test_a_bad_subject_reads_the_same_whichever_way_it_is_read(nc, realm, subject):
    await wire(nc, subject, b"body")
    await fill(nc, 1)
    api = StreamApi(nc, realm)
    assert await api.direct_record(1) == await api.leader_record(1)


async def test_a_pong_that_comes_too_late_does_not_end_the_read_loop(server, nc):
    server.pause()
    with pytest.raises(FlushTimeoutError):
        await nc.flush(timeout=0.1)
    server.resume()
    await nc.flush(timeout=2)
    assert (await received_through(nc, b"t.x", b"body")).data == b"body"


async def test_an_error_sink_that_raises_stops_nothing(server):
    seen = []

    def fail(error):
        seen.append(error)
        raise RuntimeError("the sink is broken")

    async with closing(await client(server, on_error=fail)) as nc:
        server.kill()
        await until(lambda: seen)
        await server.start()
        await until(lambda: nc.is_connected)
        assert (await received_through(nc, b"t.x", b"body")).data == b"body"


async def test_nobody_there_is_said_within_the_time_given():
    start = time.monotonic()
    with pytest.raises(Unreachable, match=r"no NATS server at nats://127\.0\.0\.1:1 within 0\.3 s"):
        await connect("nats://127.0.0.1:1", name="test", timeout_s=0.3)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("localhost:1", "Connection refused"),
        ("nobody.invalid:1", "[Nn]ame or service not known|resolution"),
    ],
)
async def test_why_nobody_is_there_is_said_without_the_numbers_of_errors(host, said):
    with pytest.raises(Unreachable, match=said) as told:
        await connect(f"nats://{host}", name="test", timeout_s=2)
    assert "Errno" not in str(told.value)
    assert "Connect call" not in str(told.value)


async def test_a_certificate_that_nobody_vouches_for_is_what_is_told(tmp_path):
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")

    async def begin(_reader, writer):
        writer.write(b'INFO {"tls_required":true,"max_payload":1048576}\r\n')
        with suppress(OSError):
            await writer.start_tls(context)

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await connect(f"tls://127.0.0.1:{port}", name="test", timeout_s=2)


async def test_a_server_that_says_nothing_is_not_waited_for(server):
    server.pause()
    with pytest.raises(Unreachable):
        await connect(server.url, name="test", timeout_s=0.3)
    server.resume()


async def test_requests_and_inboxes_use_the_prefix_given(server):
    async with closing(await client(server, inbox_prefix="_INBOX_mine")) as nc:
        assert nc.new_inbox().startswith("_INBOX_mine.")

        async def answer(message):
            await message.respond(message.reply.encode())

        await nc.subscribe("echo", cb=answer)
        assert (await nc.request("echo", timeout=2)).data.startswith(b"_INBOX_mine.")


async def test_a_tap_ends_with_the_connection_it_was_opened_on(server, nc):
    got, lost = [], []
    await nc.tap("t.x", lambda *message: got.append(message), lambda: lost.append(nc.outages))
    await nc.publish("t.x", b"before")
    await until(lambda: got)
    await server.restart()
    await until(lambda: nc.is_connected and lost)
    await nc.publish("t.x", b"after")
    await nc.flush()
    assert lost == [1]
    assert [body for _, _, body, _ in got] == [b"before"]


async def test_an_ended_tap_gets_nothing(nc):
    got, lost = [], []
    handle = await nc.tap("t.x", lambda *message: got.append(message), lambda: lost.append(1))
    await nc.untap(handle)
    await nc.publish("t.x", b"after")
    await nc.flush()
    await nc.flush()
    assert got == lost == []


WIRE = (
    b"MSG a 1 2\r\n{}\r\n"
    b"PING\r\n"
    b"MSG a 1 r 0\r\n\r\n"
    b"HMSG b\xff 1 r\x0b 17 21\r\nNATS/1.0\r\nA:b\r\n\r\nMSG \r\n"
    b"+OK\r\n"
    b"MSG c 1 2\r\n\r\n\r\n"
)
MESSAGES = [
    (b"a", b"", b"{}", b""),
    (b"a", b"r", b"", b""),
    (b"b\xff", b"r\x0b", b"MSG ", b"NATS/1.0\r\nA:b\r\n\r\n"),
    (b"c", b"", b"\r\n", b""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_messages_are_the_same_however_the_bytes_arrive(size):
    nc, got = SafeClient(), []
    nc._flush_queue = asyncio.Queue()  # a PONG is owed and goes nowhere
    parser = SafeParser(nc, {b"1": lambda *message: got.append(message)})
    for at in range(0, len(WIRE), size):
        await parser.parse(WIRE[at : at + size])
    assert got == MESSAGES


@pytest.mark.parametrize("line", [b"MSG a x 2\r\n{}\r\n", b"MSG a 1 two\r\n", b"HMSG a 1 x 2\r\n"])
async def test_bytes_that_are_no_message_are_a_protocol_error(line):
    with pytest.raises(ProtocolError):
        await SafeParser(SafeClient(), {}).parse(line)


async def test_closing_a_client_of_a_paused_server_does_not_hang(server):
    with anyio.fail_after(4):
        async with closing(await client(server)):
            server.pause()
    server.resume()


async def owe_bytes_to_a_dead_server(server, nc):
    """Leave bytes that closing would send first, on a connection that is gone."""
    server.kill()
    await until(lambda: nc.outages)
    nc._pending.append(b"PING\r\n")
    nc._pending_data_size += 6


async def test_closing_with_bytes_owed_to_a_dead_server_raises_nothing(server):
    nc = await client(server)
    transport = nc._transport._io_writer.transport
    await owe_bytes_to_a_dead_server(server, nc)
    await close(nc)
    assert nc.is_closed
    assert transport.is_closing()


async def test_a_cancellation_is_not_replaced_by_what_goes_wrong_while_closing(server):
    with anyio.move_on_after(5) as scope:
        async with closing(await client(server)) as nc:
            await owe_bytes_to_a_dead_server(server, nc)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_whoever_taps_a_client_whose_closing_went_wrong_is_told(server):
    nc, lost = await client(server), []
    await owe_bytes_to_a_dead_server(server, nc)
    await nc.tap("t.x", lambda *message: None, lambda: lost.append(1))
    await close(nc)
    assert lost == [1]


async def test_what_has_piled_up_is_taken_in_larger_pieces_than_asyncio_takes(nc):
    """`max_size` is asyncio's own name: were it gone, reading would only be slower."""
    transport = nc._transport._io_writer.transport
    assert transport.max_size > type(transport).max_size >= 2**16
