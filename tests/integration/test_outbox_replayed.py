"""An old event of ours that is stored again costs nothing; what the realm lost is still sent again."""

import os
import shutil
import signal
import sqlite3
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
    await prune_all_but_the_last(path, nc)
    await store_again(nc, (await bodies(nc))[0])
    await store(path, nc, "four")
    assert await reasons(nc) == ["one", "two", "three", "four"]
    assert len(await records(nc)) == 5


async def test_what_the_realm_lost_is_sent_again_under_a_copy_of_what_is_kept_no_more(
    server, nc, realm, path, tmp_path
):
    await store(path, nc, "one", "two")
    await copy_store(server, tmp_path / "copy")
    await until(lambda: nc.is_connected)
    await store(path, nc, "three")
    chain = await bodies(nc)
    await prune_all_but_the_last(path, nc)
    await server.stop()
    restore_store(server, tmp_path / "copy")
    await server.start()
    await until(lambda: nc.is_connected)
    await store_again(nc, chain[0])
    await drain(path, nc)
    assert await bodies(nc) == chain


async def prune_all_but_the_last(path, nc):
    later_ms = time.time_ns() // 1_000_000 + KEEP_ACKNOWLEDGED_MS + 60_000
    async with running(path, nc, clock_ms=lambda: later_ms) as outbox:
        with anyio.fail_after(5):
            await outbox.drained()
        await until(lambda: outbox._prune_at)
        standing = outbox._chain.known
        assert standing.origin.issuerseq == standing.tip.issuerseq - 1


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


@pytest.mark.parametrize(("issuer", "copied"), [("UOTHER", (2, 3)), (ISSUER.public, (0, 0, 0, 0))])
async def test_copies_behind_what_was_restored_do_not_hide_what_the_realm_lost(
    server, nc, realm, path, halved, issuer, copied
):
    await server.start()
    await until(lambda: nc.is_connected)
    for one in copied:
        await fill(nc, 1, body=halved[one], issuer=issuer)
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


@pytest.mark.parametrize(("copied", "times"), [(2, 1), (2, 4), (3, 1), (3, 4)])
async def test_a_copy_of_a_lost_event_does_not_pass_for_those_before_it(
    server, nc, realm, path, halved, copied, times
):
    await server.start()
    await until(lambda: nc.is_connected)
    for _ in range(times):
        await store_again(nc, halved[copied])
    await store(path, nc, "five")
    await store(path, nc, "six")
    assert await reasons(nc) == ["one", "two", "three", "four", "five", "six"]


async def test_a_copy_of_a_lost_event_is_seen_through_after_a_crash_too(
    server, nc, realm, path, halved
):
    forget_acknowledgements(path, after=2)
    await server.start()
    await until(lambda: nc.is_connected)
    await store_again(nc, halved[3])
    await store(path, nc, "five")
    assert await reasons(nc) == ["one", "two", "three", "four", "five"]


def forget_acknowledgements(path, *, after):
    """Leave the file as a crash does that comes before they are written."""
    db = sqlite3.connect(path)
    db.execute(
        "update events set acknowledged_ms = null, sequence = null, duplicate = null "
        "where issuerseq > ?",
        (after,),
    )
    db.commit()
    db.close()


@pytest.mark.parametrize(("unwritten", "requests"), [(0, 1), (1, 3), (3, 5)])
async def test_an_honest_look_after_a_crash_is_a_few_requests_and_sends_nothing_again(
    nc, realm, path, caplog, monkeypatch, unwritten, requests
):
    await store(path, nc, *(f"reason {n}" for n in range(20)))
    forget_acknowledgements(path, after=20 - unwritten)
    request, asked = StreamApi._request, []

    async def counted(api, subject, payload, **options):
        asked.append(subject)
        return await request(api, subject, payload, **options)

    with monkeypatch.context() as patch:
        patch.setattr(StreamApi, "_request", counted)
        async with opened(path, nc) as outbox:
            assert outbox.pending == 0
    assert len(asked) == requests
    assert len(await records(nc)) == 20
    assert caplog.text == ""


# --- a file that is an older copy of itself


@pytest.fixture
async def outdated(nc, realm, path, tmp_path):
    """The file knows events one and two, and the stream holds four; their bodies."""
    await store(path, nc, "one", "two")
    shutil.copy(path, tmp_path / "copy.db")
    await store(path, nc, "three", "four")
    shutil.copy(tmp_path / "copy.db", path)
    return await bodies(nc)


@pytest.mark.parametrize("copied", [0, 1, 2, 3])
async def test_an_older_copy_of_the_file_forks_no_chain_under_a_copy_of_an_event(
    nc, realm, path, outdated, copied
):
    await store_again(nc, outdated[copied])
    await store(path, nc, "five")
    assert await reasons(nc) == ["one", "two", "three", "four", "five"]
    assert len(await records(nc)) == 6


async def test_an_older_copy_with_something_pending_sends_nothing_under_a_copy_of_that(
    nc, realm, path, tmp_path
):
    await store(path, nc, "one")
    await keep_pending(path, nc, "two")
    shutil.copy(path, tmp_path / "copy.db")
    await store(path, nc, "three")
    chain = await bodies(nc)
    shutil.copy(tmp_path / "copy.db", path)
    await store_again(nc, chain[1])
    with pytest.raises(KeyInUse, match="sequence 3 holds an event 3"):
        async with opened(path, nc):
            pass
    assert await bodies(nc) == chain


async def test_an_older_copy_goes_on_at_the_furthest_event_though_the_chain_began_anew_between(
    nc, realm, path, tmp_path
):
    await store(path, nc, "one")
    event, anew = ChainHead(49, "0" * 64), []
    for name in ("fifty", "fifty-one"):
        chance = name[-10:].ljust(10).encode()
        signed = sign_event(
            withdrawn(name), key=ISSUER, realm=realm, after=event, time_ms=0, chance=chance
        )
        await store_again(nc, signed.body)
        event = signed.head
        anew.append(signed.body)
    await store_again(nc, anew[0])
    async with opened(path, nc) as outbox:
        assert outbox.head == event


async def test_an_older_copy_that_may_not_read_by_sequence_signs_by_a_trackers_word_or_not_at_all(
    server, nc, realm, path, outdated
):
    await store_again(nc, outdated[0])
    await nc.close()

    async def ask_head(sequence):
        assert sequence == 5
        return outdated[3]

    async def no_tracker(sequence):
        raise Unreachable("no tracker answers")

    async with reading_by_sequence_denied(server) as (denied, granted):
        for options, why in [({}, "grant it "), ({"ask_head": no_tracker}, "no tracker answers")]:
            async with running(path, denied, ack_timeout_s=0.1, **options) as outbox:
                assert why in outbox.trouble
                with anyio.move_on_after(1.5):
                    await outbox.drained()
                    pytest.fail("the copy was believed")
        assert len(await records(granted)) == 5
        async with running(path, denied, ack_timeout_s=0.3, ask_head=ask_head) as outbox:
            await hand_all(outbox, "five")
            with anyio.fail_after(20):
                await outbox.drained()
        assert await reasons(granted) == ["one", "two", "three", "four", "five"]


# --- a leader that does not answer


@pytest.mark.parametrize("was_granted", [False, True])
async def test_a_leader_that_is_silent_for_a_while_is_no_denial(
    server, nc, realm, path, monkeypatch, was_granted
):
    names = [f"reason {n}" for n in range(50)]
    read, paused = StreamApi.leader_record, []

    async def read_from_a_paused_server(api, sequence):
        # longer than what is tried before a grant is known, where it is known
        if len(paused) < (5 if was_granted else 1):
            paused.append(sequence)
            server.pause()
            try:
                return await read(api, sequence)
            finally:
                server.resume()
        return await read(api, sequence)

    async with running(path, nc, ack_timeout_s=0.3) as outbox:
        await hand_all(outbox, *names)
        with anyio.fail_after(10):
            await outbox.drained()
        chain = await bodies(nc)
        await store_again(nc, chain[1])
        if was_granted:
            await outbox._look()
        monkeypatch.setattr(StreamApi, "leader_record", read_from_a_paused_server)
        outbox._must_look = True
        await hand_all(outbox, "next")
        with anyio.fail_after(20):
            await outbox.drained()
    assert len(paused) == (5 if was_granted else 1)
    assert len(await records(nc)) == 52
    assert await reasons(nc) == [*names, "next"]


# --- a file that is gone


@pytest.mark.parametrize("tracker", ["none", "away", "honest"])
async def test_a_copy_under_a_new_file_stalls_nothing(nc, realm, path, tracker):
    await store(path, nc, "one", "two", "three", "four")
    chain = await bodies(nc)
    path.unlink()

    async def ask_head(sequence):
        if tracker == "away":
            raise Unreachable("no tracker answers")
        return chain[3]

    options = {} if tracker == "none" else {"ask_head": ask_head}
    async with opened(path, nc, **options) as outbox:
        assert outbox.head.issuerseq == 4
    await store_again(nc, chain[0])
    async with running(path, nc, **options) as outbox:
        await hand_all(outbox, "five")
        with anyio.fail_after(5):
            await outbox.drained()
    assert await reasons(nc) == ["one", "two", "three", "four", "five"]
    assert len(await records(nc)) == 6


@pytest.mark.parametrize("names", [(), ("three",)])
async def test_a_file_of_before_the_origins_sequence_was_kept_still_opens(nc, realm, path, names):
    await store(path, nc, "one", "two")
    path.unlink()
    await store(path, nc, *names)
    db = sqlite3.connect(path)
    db.execute("alter table outbox drop column origin_sequence")
    db.commit()
    db.close()
    await store(path, nc, "next")
    assert await reasons(nc) == ["one", "two", *names, "next"]


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
