"""An old event of ours that is stored again costs nothing; what the realm lost is still sent again."""

import os
import signal
import time
from contextlib import asynccontextmanager

import anyio
import pytest

from bus_kit import ISSUER, REALM, client_at, fill, until, withdrawn
from meshnet_bus.api import StreamApi
from meshnet_bus.client import Unreachable, closing
from meshnet_bus.outbox import KEEP_ACKNOWLEDGED_MS
from meshnet_bus.outbox_file import OutboxFile
from meshnet_bus.place import KeyInUse
from meshnet_bus.stream import provision
from meshnet_events.envelope import ChainHead, sign_event
from outbox_kit import (
    bodies,
    copy_store,
    drain,
    hand_all,
    keep_pending,
    opened,
    reasons,
    records,
    restore_store,
    running,
    store,
)

DENIED = """
authorization {
  users = [
    {user: node, password: w, permissions: {publish: {deny: "$JS.API.STREAM.MSG.GET.>"}}}
    {user: reader, password: w}
  ]
}
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outbox.db"


@pytest.fixture
async def halved(server, nc, realm, path, tmp_path):
    """Four events were acknowledged, and the server stands still with a store that has two of them."""
    await store(path, nc, "one", "two")
    await copy_store(server, tmp_path / "copy")
    await until(lambda: nc.is_connected)
    await store(path, nc, "three", "four")
    chain = await bodies(nc)
    await server.stop()
    restore_store(server, tmp_path / "copy")
    return chain


async def store_again(nc, body, **headers):
    """Store a copy of `body` as the newest record of our subject."""
    return await StreamApi(nc, REALM).append(ISSUER.public, body, headers=headers or None)


@asynccontextmanager
async def reading_by_sequence_denied(server):
    """Have the running server deny it to a node; clients of that node, and of one who may read."""
    config = server.directory / "nats.conf"
    config.write_text(config.read_text() + DENIED)
    os.kill(server.pid, signal.SIGHUP)
    await until(lambda: "Reloaded server configuration" in server.log.read_text())
    async with (
        closing(await client_at(f"nats://node:w@127.0.0.1:{server.port}")) as denied,
        closing(await client_at(f"nats://reader:w@127.0.0.1:{server.port}")) as granted,
    ):
        with pytest.raises(Unreachable):
            await StreamApi(denied, REALM, timeout_s=0.3).leader_record(1)
        yield denied, granted


@pytest.mark.parametrize("headers", [{}, {"Nats-Msg-Id": "again"}])
async def test_a_running_outbox_sends_nothing_again_for_an_old_event_that_was_stored_again(
    server, nc, realm, path, caplog, headers
):
    names = [f"reason {n}" for n in range(300)]
    async with running(path, nc) as outbox:
        await hand_all(outbox, *names)
        with anyio.fail_after(20):
            await outbox.drained()
        assert await store_again(nc, (await bodies(nc))[2], **headers) == 301
        server.kill()
        await until(lambda: not nc.is_connected)
        await server.start()
        (handed,) = await hand_all(outbox, "next")
        with anyio.fail_after(10):
            published = await outbox.stored(handed)
        assert (handed.issuerseq, published.sequence) == (301, 302)
    assert "sequence 301 holds event 3 of" in caplog.text
    assert len(await records(nc)) == 302
    assert await reasons(nc) == [*names, "next"]


async def test_an_old_event_that_was_stored_again_is_told_once(nc, realm, path, caplog):
    await store(path, nc, "one", "two", "three")
    await store_again(nc, (await bodies(nc))[0])
    async with opened(path, nc) as outbox:
        for _ in range(3):
            await outbox._look()
    assert caplog.text.count("sequence 4 holds event 1") == 1
    assert len(await records(nc)) == 4


async def test_a_stale_answer_sends_nothing_again_and_accuses_nobody(
    nc, realm, path, caplog, monkeypatch
):
    await store(path, nc, "one", "two", "three")

    async def stale(api, _issuer):
        return await api.direct_record(1)

    monkeypatch.setattr(StreamApi, "last_record_of", stale)
    async with opened(path, nc) as outbox:
        assert outbox.pending == 0
    assert caplog.text == ""


async def test_an_old_event_is_known_again_when_the_file_keeps_it_no_more(nc, realm, path):
    await store(path, nc, "one", "two", "three")
    later_ms = time.time_ns() // 1_000_000 + KEEP_ACKNOWLEDGED_MS + 60_000
    async with running(path, nc, clock_ms=lambda: later_ms) as outbox:
        with anyio.fail_after(5):
            await outbox.drained()
        await until(lambda: outbox._prune_at)
        assert outbox._chain.known.origin.issuerseq == 2
    await store_again(nc, (await bodies(nc))[0])
    await store(path, nc, "four")
    assert await reasons(nc) == ["one", "two", "three", "four"]
    assert len(await records(nc)) == 5


async def test_another_event_at_a_place_of_ours_is_a_fork_however_old(nc, realm, path):
    await store(path, nc, "one", "two", "three")
    forked = sign_event(
        withdrawn("the thief's"),
        key=ISSUER,
        realm=realm,
        after=ChainHead(),
        time_ms=0,
        chance=bytes(10),
    )
    await store_again(nc, forked.body)
    with pytest.raises(KeyInUse, match="sequence 4 holds an event 1"):
        async with opened(path, nc):
            pass


@pytest.mark.parametrize(("issuer", "copied"), [("UOTHER", -1), (ISSUER.public, 0)])
async def test_copies_behind_what_was_restored_do_not_hide_what_the_realm_lost(
    server, nc, realm, path, halved, issuer, copied
):
    await server.start()
    await until(lambda: nc.is_connected)
    await fill(nc, 4, body=halved[copied], issuer=issuer)
    await drain(path, nc)
    assert await bodies(nc) == halved


async def test_what_the_realm_lost_is_sent_again_when_our_last_record_is_no_event(
    server, nc, realm, path, halved
):
    await server.start()
    await until(lambda: nc.is_connected)
    await fill(nc, 1)
    await drain(path, nc)
    assert await bodies(nc) == halved


async def test_what_the_realm_lost_is_sent_again_where_reading_by_sequence_is_not_granted(
    server, nc, realm, path, halved
):
    await nc.close()  # from here on the server asks who one is
    await server.start()
    async with reading_by_sequence_denied(server) as (denied, granted):
        await drain(path, denied, ack_timeout_s=0.3)
        assert await bodies(granted) == halved


async def test_an_event_that_a_trackers_word_is_for_need_not_lie_at_any_sequence(nc, realm, path):
    await store(path, nc, "one")
    path.unlink()
    await keep_pending(path, nc, "two")
    async with OutboxFile.open(path, realm, ISSUER.public) as file:
        (event,) = await file.events(1, 1)
    await nc.jetstream().delete_stream(f"MESH_{realm}")
    await provision(nc, realm)

    async def ask_head(sequence):
        return event.body

    async with opened(path, nc, ask_head=ask_head) as outbox:
        assert (await outbox._chain.acknowledged(2)).sequence == 0
        await outbox._look()
        assert outbox.pending == 0


async def test_a_connection_lost_while_the_stream_is_asked_decides_nothing(
    server, nc, realm, path, monkeypatch
):
    await store(path, nc, "one", "two", "three")
    await store_again(nc, (await bodies(nc))[0])
    read, lost = StreamApi.leader_record, []

    async def read_through_an_outage(api, sequence):
        if not lost:
            lost.append(sequence)
            server.kill()
            await until(lambda: not nc.is_connected)
            await server.start()
            await until(lambda: nc.is_connected)
            raise Unreachable("its answer went down with the connection")
        return await read(api, sequence)

    monkeypatch.setattr(StreamApi, "leader_record", read_through_an_outage)
    await store(path, nc, "four")
    assert lost == [3]
    assert len(await records(nc)) == 5


# --- a file that is gone


@pytest.mark.parametrize("is_emptied", [False, True])
async def test_whoever_deletes_or_empties_an_outbox_is_told_what_that_may_have_lost(
    nc, realm, path, caplog, is_emptied
):
    await store(path, nc, "one", "two")
    await keep_pending(path, nc, "lost")
    assert "is new or was emptied" not in caplog.text
    if is_emptied:
        path.write_bytes(b"")
    else:
        path.unlink()
    await store(path, nc, "three")
    told = [record for record in caplog.records if "is new or was emptied" in record.message]
    assert [record.levelname for record in told] == ["WARNING"]
    assert "its chain goes on with event 3. What another" in told[0].message
    assert await reasons(nc) == ["one", "two", "three"]
