"""What an outbox took is stored exactly once and in order, whatever happens to anyone."""

import asyncio
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import outbox_kit
from bus_kit import ISSUER, REALM, client, fill, until, withdrawn
from meshnet_bus import outbox as outbox_module
from meshnet_bus.api import ApiError, StreamApi
from meshnet_bus.client import Unreachable, closing
from meshnet_bus.outbox import KEEP_ACKNOWLEDGED_MS, Outbox, OutboxStopped
from meshnet_bus.outbox_file import OutboxError, OutboxFile, OutboxFull, OutboxInUse
from meshnet_bus.place import KeyInUse, PlaceLost
from meshnet_bus.publisher import Publisher
from meshnet_bus.stream import stream_config
from meshnet_events.envelope import ChainHead, sign_event
from meshnet_events.facts import NodeEnrolled
from meshnet_events.keys import EventKey
from outbox_kit import (
    bodies,
    copy_store,
    drain,
    folded,
    hand_all,
    keep_pending,
    opened,
    reasons,
    records,
    restore_store,
    running,
    store,
)

TESTS = Path(outbox_kit.__file__).parent
OPERATOR = EventKey(bytes(31) + b"o")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outbox.db"


@pytest.fixture
def looking(monkeypatch):
    """Look at the stream before every event, as after a second of silence."""
    monkeypatch.setattr(outbox_module, "_TRUST_ACK_FOR_S", 0.0)


async def fails_with(error, outbox, **match):
    with anyio.fail_after(15), pytest.raises(error, **match):
        await outbox.run()


def child(server, path, name="child"):
    return subprocess.Popen(
        [sys.executable, "-m", "outbox_kit", server.url, str(path), name],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )


def kill(process):
    """End a process as a crash would; the whole lines that it had told and nobody read."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    told = process.stdout.read().decode().rpartition("\n")[0].splitlines()
    process.stdout.close()
    return told


# --- handing and storing


async def test_events_are_stored_in_the_order_in_which_they_were_handed(nc, realm, path):
    names = [f"reason {n}" for n in range(30)]
    async with running(path, nc) as outbox:
        handed = await hand_all(outbox, *names)
        with anyio.fail_after(10):
            published = [await outbox.stored(one) for one in handed]
        assert outbox.pending == 0
    assert [one.issuerseq for one in handed] == list(range(1, 31))
    assert [one.sequence for one in published] == list(range(1, 31))
    assert [one.digest for one in published] == [one.digest for one in handed]
    assert not any(one.duplicate for one in published)
    assert await reasons(nc) == names
    assert len(await records(nc)) == 30


async def test_what_was_handed_is_sent_by_a_later_process(nc, realm, path):
    await keep_pending(path, nc, "one", "two")
    await keep_pending(path, nc, "three")
    assert await records(nc) == []
    async with running(path, nc) as outbox:
        assert outbox.head.issuerseq == 3
        with anyio.fail_after(10):
            await outbox.drained()
    for _ in range(3):
        await drain(path, nc)
    assert len(await records(nc)) == 3
    assert await reasons(nc) == ["one", "two", "three"]


async def test_where_an_event_was_stored_is_known_to_a_later_process(nc, realm, path):
    await fill(nc, 4, issuer="UOTHER")
    async with running(path, nc) as outbox:
        handed = await outbox.hand(withdrawn())
        with anyio.fail_after(5):
            published = await outbox.stored(handed)
    async with opened(path, nc) as outbox:
        assert await outbox.stored(handed) == published
        assert published.sequence == 5


async def test_facts_handed_together_share_commits_and_keep_their_order(
    nc, realm, path, monkeypatch
):
    append, commits = OutboxFile.append, []

    async def counted(file, events, now_ms):
        commits.append(len(events))
        await append(file, events, now_ms)

    monkeypatch.setattr(OutboxFile, "append", counted)
    names = [f"reason {n}" for n in range(100)]
    async with running(path, nc) as outbox:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(outbox.hand, withdrawn(name))
        with anyio.fail_after(10):
            await outbox.drained()
    assert sum(commits) == 100
    assert len(commits) < 10
    assert await reasons(nc) == names


async def test_a_fact_that_the_gate_would_refuse_takes_no_place(nc, realm, path):
    failed = []

    async def hand(outbox, reason):
        try:
            await outbox.hand(withdrawn(reason))
        except ValueError as error:
            failed.append(str(error))

    async with running(path, nc) as outbox:
        async with anyio.create_task_group() as tasks:
            for reason in ("one", "x" * 62_000, "two"):
                tasks.start_soon(hand, outbox, reason)
        with anyio.fail_after(5):
            await outbox.drained()
    assert len(failed) == 1
    assert "no fact of its type" in failed[0]
    assert await reasons(nc) == ["one", "two"]


async def test_a_cancelled_hand_breaks_no_chain(nc, realm, path):
    async with running(path, nc) as outbox:
        for n in range(40):
            with anyio.move_on_after(0.0001 * n):
                await outbox.hand(withdrawn(f"perhaps {n}"))
        await outbox.hand(withdrawn("last"))
        with anyio.fail_after(10):
            await outbox.drained()
        last = outbox.head.issuerseq
    found = await reasons(nc)
    assert len(found) == last == len(await records(nc))
    assert found[-1] == "last"


async def test_tasks_that_asyncio_itself_cancels_lose_and_double_nothing(nc, realm, path):
    # as gRPC cancels a handler: no shield of anyio's is asked
    promised = []

    async def hand(outbox, name):
        await outbox.hand(withdrawn(name))
        promised.append(name)

    async with running(path, nc) as outbox:
        for n in range(60):
            tasks = [asyncio.create_task(hand(outbox, f"{n}-{i}")) for i in range(3)]
            await asyncio.sleep(0.00002 * n)
            tasks[0].cancel()
            await asyncio.gather(*tasks[1:])
            await asyncio.wait(tasks)
        with anyio.fail_after(10):
            await outbox.drained()
        last = outbox.head.issuerseq
    found = await reasons(nc)
    assert len(found) == len(set(found)) == last == len(await records(nc))
    assert set(promised) <= set(found)
    assert len(promised) >= 120


async def test_an_event_that_was_not_handed_is_not_waited_for(nc, realm, path):
    async with opened(path, nc) as outbox:
        (handed,) = await hand_all(outbox, "one")
        with pytest.raises(LookupError, match="event 2 was not handed"):
            await outbox.stored(type(handed)(2, handed.digest))


# --- crashes and outages


async def test_killed_again_and_again_it_applies_every_event_once(server, nc, realm, path):
    chance, told = random.Random(4), []
    for number in range(10):
        process = child(server, path, f"{number:02d}")
        try:
            assert process.stdout.readline() == b"ready\n"
            await anyio.sleep(chance.random() * 0.25)
            if number in (3, 7):  # dies in the middle of an outage
                server.kill()
                await anyio.sleep(0.1)
        finally:
            told += kill(process)
        if number in (3, 7):
            await server.start()
    await until(lambda: nc.is_connected)
    async with running(path, nc) as outbox:
        with anyio.fail_after(20):
            await outbox.drained()
        head = outbox.head
    state, labels = await folded(nc)
    assert len(told) > 100
    assert labels == sorted(set(labels)), "out of order, or twice"
    assert set(told) <= set(labels), "handed and lost"
    # what was written and killed before it could be told: at most one each time
    assert len(labels) <= len(told) + 10
    chain = state.chains[ISSUER.public]
    assert (chain.issuerseq, chain.digest) == (head.issuerseq, head.digest)
    assert head.issuerseq == 1 + len(labels)
    assert set(state.counts) <= {"applied", "replayed"}


async def test_a_lost_acknowledgement_leaves_exactly_one_record(server, nc, realm, path):
    async with running(path, nc, ack_timeout_s=0.2) as outbox:
        (first,) = await hand_all(outbox, "before")
        await outbox.stored(first)
        server.pause()
        (handed,) = await hand_all(outbox, "during")
        await anyio.sleep(0.7)  # several time-outs; what was sent waits in the server's socket
        assert outbox.pending == 1
        assert outbox.trouble
        server.resume()
        with anyio.fail_after(10):
            published = await outbox.stored(handed)
        assert published.sequence == 2
        assert published.duplicate
        await until(lambda: not outbox.trouble)
    assert len(await records(nc)) == 2
    assert await reasons(nc) == ["before", "during"]


async def test_events_are_handed_while_the_server_is_down_and_stored_once_it_is_back(
    server, nc, realm, path
):
    async with running(path, nc, ack_timeout_s=0.5) as outbox:
        await hand_all(outbox, "before")
        await outbox.drained()
        server.kill()
        await until(lambda: not nc.is_connected)
        with anyio.fail_after(1):
            handed = await hand_all(outbox, "one", "two", "three")
        assert outbox.pending == 3
        await server.start()
        with anyio.fail_after(10):
            await outbox.stored(handed[-1])
    assert await reasons(nc) == ["before", "one", "two", "three"]
    assert len(await records(nc)) == 4


async def test_an_outbox_that_knows_its_place_opens_and_takes_events_without_a_server(
    server, nc, realm, path
):
    await store(path, nc, "one")
    server.kill()
    await until(lambda: not nc.is_connected)
    async with running(path, nc) as outbox:
        (handed,) = await hand_all(outbox, "two")
        assert handed.issuerseq == 2
        await server.start()
        with anyio.fail_after(10):
            await outbox.drained()
    assert await reasons(nc) == ["one", "two"]


async def test_a_new_outbox_takes_nothing_before_it_knows_its_place(server, nc, realm, path):
    await Publisher(nc, realm, ISSUER).publish(withdrawn("one"))
    server.kill()
    await until(lambda: not nc.is_connected)
    async with running(path, nc) as outbox:
        assert outbox.head is None
        with pytest.raises(Unreachable, match=r"is new, and where the chain of .*not connected"):
            await outbox.hand(withdrawn("too early"))
        await server.start()
        await until(lambda: outbox.head is not None, seconds=10)
        await hand_all(outbox, "two")
        with anyio.fail_after(10):
            await outbox.drained()
    assert await reasons(nc) == ["one", "two"]


async def test_a_server_restarted_under_a_stream_of_events_loses_and_doubles_none(
    server, nc, realm, path
):
    names = [f"reason {n}" for n in range(200)]
    async with running(path, nc, ack_timeout_s=0.3) as outbox:
        for number, name in enumerate(names):
            await outbox.hand(withdrawn(name))
            if number in (60, 130):
                server.kill()
                await server.start()
        with anyio.fail_after(20):
            await outbox.drained()
    assert await reasons(nc) == names


async def test_an_event_that_the_stream_refuses_stops_it_and_stays_pending(nc, realm, path):
    await store(path, nc, "one")
    api = StreamApi(nc, realm)
    await api.call(f"STREAM.UPDATE.MESH_{realm}", stream_config(realm) | {"max_msg_size": 9}, dict)
    async with opened(path, nc) as outbox:
        (handed,) = await hand_all(outbox, "two")
        await fails_with(ApiError, outbox, match="message size exceeds maximum allowed")
        with pytest.raises(OutboxStopped, match="message size exceeds"):
            await outbox.stored(handed)
        await api.call(f"STREAM.UPDATE.MESH_{realm}", stream_config(realm), dict)
    await drain(path, nc)
    assert await reasons(nc) == ["one", "two"]


# --- the place in the chain


async def test_a_deleted_outbox_goes_on_where_the_stream_ends(nc, realm, path):
    await store(path, nc, "one", "two")
    path.unlink()
    await store(path, nc, "three")
    assert await reasons(nc) == ["one", "two", "three"]


async def test_an_older_copy_with_nothing_pending_follows_the_stream(nc, realm, path, tmp_path):
    await store(path, nc, "one")
    shutil.copy(path, tmp_path / "copy.db")
    await store(path, nc, "two", "three")
    shutil.copy(tmp_path / "copy.db", path)
    await store(path, nc, "four")
    assert await reasons(nc) == ["one", "two", "three", "four"]
    assert len(await records(nc)) == 4


async def test_an_older_copy_with_something_pending_sends_nothing(nc, realm, path, tmp_path):
    await keep_pending(path, nc, "one", "two")
    shutil.copy(path, tmp_path / "copy.db")
    await drain(path, nc)
    await store(path, nc, "three")
    shutil.copy(tmp_path / "copy.db", path)
    with pytest.raises(KeyInUse, match=r"an event 3 .*up to 2, 2 of them pending.* older copy"):
        async with opened(path, nc):
            pass
    assert len(await records(nc)) == 3
    path.unlink()  # as the message says
    await store(path, nc, "four")
    assert await reasons(nc) == ["one", "two", "three", "four"]


async def test_another_writer_with_the_key_is_found_out_and_nothing_more_is_signed(
    server, nc, realm, path, looking
):
    async with opened(path, nc) as outbox:
        await hand_all(outbox, "one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outbox.run)
            await outbox.drained()
            tasks.cancel_scope.cancel()
        async with closing(await client(server)) as elsewhere:
            await Publisher(elsewhere, realm, ISSUER).publish(withdrawn("the thief's"))
        (handed,) = await hand_all(outbox, "two")

        async def wait_for_it():
            with pytest.raises(OutboxStopped):
                await outbox.stored(handed)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_it)
                await fails_with(KeyInUse, outbox, match="another process has this key")
        for waiting in (outbox.stored(handed), outbox.drained(), outbox.hand(withdrawn())):
            with pytest.raises(OutboxStopped, match="another process has this key"):
                await waiting
    assert await reasons(nc) == ["one", "the thief's"]


async def test_another_writer_is_found_out_while_nothing_is_pending(server, nc, realm, path):
    async with opened(path, nc) as outbox:
        await Publisher(nc, realm, ISSUER).publish(withdrawn("the thief's"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails_with, KeyInUse, outbox)
    assert len(await records(nc)) == 1


async def test_what_the_realm_lost_is_sent_again_by_the_next_process(
    server, nc, realm, path, tmp_path
):
    await store(path, nc, "one", "two")
    await copy_store(server, tmp_path / "copy")
    await until(lambda: nc.is_connected)
    await store(path, nc, "three", "four")
    original = await bodies(nc)
    await server.stop()
    restore_store(server, tmp_path / "copy")
    await server.start()
    await until(lambda: nc.is_connected)
    assert await bodies(nc) == original[:2]
    async with opened(path, nc) as outbox:
        assert outbox.pending == 2
    assert numbers_in(path, "where acknowledged_ms is null") == [3, 4], "they could be pruned"
    await store(path, nc, "five")
    again = await bodies(nc)
    assert again[:4] == original
    assert await reasons(nc) == ["one", "two", "three", "four", "five"]


async def test_what_the_realm_lost_is_sent_again_by_a_process_that_is_running(
    server, nc, realm, path, tmp_path, caplog
):
    async with running(path, nc, ack_timeout_s=0.5) as outbox:
        await hand_all(outbox, "one")
        await outbox.drained()
        await copy_store(server, tmp_path / "copy")
        await hand_all(outbox, "two", "three")
        with anyio.fail_after(10):
            await outbox.drained()
        original = await bodies(nc)
        await server.stop()
        restore_store(server, tmp_path / "copy")
        await server.start()
        await until(lambda: nc.is_connected)
        for _ in range(100):  # it finds out by itself
            if (found := await bodies(nc)) == original:
                break
            await anyio.sleep(0.05)
        assert found == original
        assert "2 to 3 are sent again" in caplog.text
        await hand_all(outbox, "four")
        with anyio.fail_after(10):
            await outbox.drained()
    assert await reasons(nc) == ["one", "two", "three", "four"]


async def test_a_realm_made_anew_gets_every_event_from_the_first(nc, realm, path):
    await store(path, nc, "one", "two")
    original = await bodies(nc)
    await nc.jetstream().delete_stream(f"MESH_{realm}")
    api = StreamApi(nc, realm)
    await api.call(f"STREAM.CREATE.MESH_{realm}", stream_config(realm), dict)
    await drain(path, nc)
    assert await bodies(nc) == original


async def test_events_are_kept_for_a_week_and_what_is_lost_then_is_said(nc, realm, path):
    await store(path, nc, "one", "two", "three")
    later = outbox_module.time.time_ns() // 1_000_000 + KEEP_ACKNOWLEDGED_MS
    await keep_pending(path, nc, "four")
    await kept_after_a_turn(path, nc, clock_ms=lambda: later - 60_000)
    assert numbers_in(path) == [1, 2, 3, 4]
    await kept_after_a_turn(path, nc, clock_ms=lambda: later + 60_000)
    assert numbers_in(path) == [4]
    await nc.jetstream().delete_stream(f"MESH_{realm}")
    api = StreamApi(nc, realm)
    await api.call(f"STREAM.CREATE.MESH_{realm}", stream_config(realm), dict)
    with pytest.raises(PlaceLost, match=r"shows is 0, 4 was ack.* none before 4: .* chain_from 5"):
        async with opened(path, nc):
            pass
    assert await records(nc) == []


async def kept_after_a_turn(path, nc, **options):
    async with running(path, nc, **options) as outbox:
        with anyio.fail_after(5):
            await outbox.drained()
        await until(lambda: outbox._prune_at)


def numbers_in(path, where=""):
    db = sqlite3.connect(path)
    try:
        query = f"select issuerseq from events {where} order by issuerseq"
        return [row[0] for row in db.execute(query)]
    finally:
        db.close()


async def test_a_pending_event_is_never_pruned(nc, realm, path):
    await keep_pending(path, nc, "one", "two")
    file = OutboxFile.open(path, realm, ISSUER.public)
    async with file as opened_file:
        assert await opened_file.prune(before_ms=2**60, limit=10) is None
    assert numbers_in(path) == [1, 2]


async def test_a_foreign_last_record_does_not_shake_what_the_file_knows(nc, realm, path):
    await store(path, nc, "one")
    await fill(nc, 1)
    await store(path, nc, "two")
    assert await reasons(nc) == ["one", "two"]


async def test_a_tracker_finds_the_place_that_the_last_record_hides(nc, realm, path):
    await store(path, nc, "one", "two", "three")
    chain = await bodies(nc)
    path.unlink()
    await fill(nc, 1)
    with pytest.raises(PlaceLost, match="no event that this key signed"):
        async with opened(path, nc):
            pass
    asked = []

    async def ask_head(sequence):
        asked.append(sequence)
        return chain[-1]

    async with running(path, nc, ask_head=ask_head) as outbox:
        assert outbox.head.issuerseq == 3
        assert asked[0] == 4
        await hand_all(outbox, "four")
        with anyio.fail_after(5):
            await outbox.drained()
    assert await reasons(nc) == ["one", "two", "three", "four"]


async def test_a_copy_of_an_older_event_is_not_taken_for_the_place_where_a_tracker_knows_better(
    nc, realm, path
):
    await store(path, nc, "one", "two", "three")
    chain = await bodies(nc)
    path.unlink()
    await fill(nc, 1, body=chain[0])

    async def ask_head(sequence):
        return chain[-1]

    async with running(path, nc, ask_head=ask_head) as outbox:
        await hand_all(outbox, "four")
        with anyio.fail_after(5):
            await outbox.drained()
    assert await reasons(nc) == ["one", "two", "three", "four"]


async def test_a_trackers_word_is_followed_only_where_it_can_be_right(nc, realm, path):
    await store(path, nc, "one", "two")
    chain = await bodies(nc)
    fork = sign_event(
        withdrawn("other"),
        key=ISSUER,
        realm=realm,
        after=ChainHead(1, "0" * 64),
        time_ms=0,
        chance=bytes(10),
    )
    foreign = sign_event(
        withdrawn(),
        key=OPERATOR,
        realm=realm,
        after=ChainHead(9, "0" * 64),
        time_ms=0,
        chance=bytes(10),
    )
    path.unlink()
    for body, why in [
        (chain[0], "a tracker's chain of this key ends at event 1, and the stream holds event 2"),
        (None, "ends at event 0, and the stream holds event 2"),
        (fork.body, "two different events 2"),
        (foreign.body, "none that this key signed"),
        (b"{", "none that this key signed"),
    ]:

        async def ask_head(sequence, body=body):
            return body

        with pytest.raises(PlaceLost, match=why):
            async with opened(path, nc, ask_head=ask_head):
                pass


async def test_no_tracker_to_ask_leaves_the_stream_to_decide(nc, realm, path):
    await store(path, nc, "one", "two")
    path.unlink()

    async def ask_head(sequence):
        raise Unreachable("no tracker answers")

    async with opened(path, nc, ask_head=ask_head) as outbox:
        assert outbox.head.issuerseq == 2


async def test_an_operators_enrolment_lets_a_lost_chain_start_anew(nc, realm, path):
    await store(path, nc, "one")
    path.unlink()
    enrolled = NodeEnrolled(chain_from=50, group="", label="again", node=ISSUER.public)
    await Publisher(nc, realm, OPERATOR).publish(enrolled)
    (enrolment,) = await bodies(nc, OPERATOR.public)

    async def ask_head(sequence):
        return enrolment

    unknown = f"enrolment by {OPERATOR.public}, which is no operator's key that this node was told"
    with pytest.raises(PlaceLost, match=unknown):
        async with opened(path, nc, ask_head=ask_head):
            pass
    options = {"ask_head": ask_head, "operators": (OPERATOR.public,)}
    async with opened(path, nc, **options) as outbox:
        assert [one.issuerseq for one in await hand_all(outbox, "anew")] == [50]
    async with running(path, nc, **options) as outbox:
        with anyio.fail_after(5):
            await outbox.drained()
        assert outbox.head.issuerseq == 50
    prev = (await Publisher(nc, realm, OPERATOR).resume()).digest
    assert b'"issuerseq":50,"prev":"%b"' % prev.encode() in (await records(nc))[-1].body


async def test_an_enrolment_that_the_key_itself_signed_is_an_event_like_any_other(nc, realm, path):
    own = NodeEnrolled(chain_from=50, group="", label="", node=ISSUER.public)
    await Publisher(nc, realm, ISSUER).publish(own)
    (body,) = await bodies(nc)

    async def ask_head(sequence):
        return body

    async with opened(path, nc, ask_head=ask_head, operators=(OPERATOR.public,)) as outbox:
        assert outbox.head.issuerseq == 1


# --- the file


async def test_one_process_has_the_outbox_and_its_death_frees_it(server, nc, realm, path):
    process = child(server, path)
    try:
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(OutboxInUse, match=r"another process has the outbox .* open"):
            async with opened(path, nc):
                pass
    finally:
        kill(process)
    async with opened(path, nc):
        with pytest.raises(OutboxInUse):
            async with opened(path, nc):
                pass


async def test_the_file_is_ours_alone(nc, realm, path):
    mask = os.umask(0)
    try:
        async with opened(path, nc) as outbox:
            await hand_all(outbox, "one")
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.glob("outbox*")}
    finally:
        os.umask(mask)
    assert modes == {"outbox.db": 0o600, "outbox.db-wal": 0o600}
    path.chmod(0o644)
    await drain(path, nc)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_the_file_of_another_key_or_realm_is_refused(nc, realm, path):
    await keep_pending(path, nc, "one")
    with pytest.raises(OutboxError, match=f"outbox of {ISSUER.public} in realm 'demo'"):
        async with Outbox.open(path, nc, REALM, OPERATOR):
            pass
    with pytest.raises(OutboxError, match=r"expected .* in 'other'"):
        async with Outbox.open(path, nc, "other", ISSUER):
            pass
    await drain(path, nc)
    assert await reasons(nc) == ["one"]


async def test_a_damaged_file_is_refused_and_its_place_found_once_it_is_away(nc, realm, path):
    await store(path, nc, *(f"reason {n}" for n in range(20)))
    content = path.read_bytes()
    middle = len(content) // 2
    for damaged in (
        content[:middle] + random.Random(1).randbytes(512) + content[middle + 512 :],
        content[:4096] + bytes(len(content) - 4096),
        b"not a database at all" * 1000,
        content[: len(content) - 4096],
    ):
        path.write_bytes(damaged)
        with pytest.raises(OutboxError, match=r"Move .*outbox\.db\* away: the place in the chain"):
            async with opened(path, nc):
                pass
    path.rename(path.with_suffix(".away"))
    async with opened(path, nc) as outbox:
        assert outbox.head.issuerseq == 20


async def test_a_database_of_something_else_is_left_alone(nc, realm, path):
    db = sqlite3.connect(path)
    db.execute("create table things (id integer)")
    db.close()
    with pytest.raises(OutboxError, match="a database of something else"):
        async with opened(path, nc):
            pass
    db = sqlite3.connect(path)
    assert db.execute("select name from sqlite_schema").fetchall() == [("things",)]
    db.close()


async def test_a_folder_that_is_not_there_is_named(nc, realm, tmp_path):
    with pytest.raises(OutboxError, match=r"cannot open the outbox .*Its folder must exist"):
        async with opened(tmp_path / "nowhere" / "outbox.db", nc):
            pass


async def test_a_pending_event_that_was_tampered_with_is_not_sent(nc, realm, path):
    await keep_pending(path, nc, "one", "two")
    db = sqlite3.connect(path)
    db.execute(
        "update events set body = cast(replace(body, 'two', 'six') as blob) where issuerseq = 2"
    )
    db.commit()
    db.close()
    async with opened(path, nc) as outbox:
        await fails_with(OutboxError, outbox, match=f"event 2 is not the one that {ISSUER.public}")
    assert await reasons(nc) == ["one"]


async def test_a_full_disk_takes_nothing_and_harms_nothing(nc, realm, path):
    async with running(path, nc) as outbox:
        await hand_all(outbox, "one")
        await outbox.drained()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        room = max(file.stat().st_size for file in path.parent.glob("outbox*"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (room + 2_000, hard))
        try:
            for _ in range(3):
                with pytest.raises(OutboxFull, match="Nothing was written; make room"):
                    await outbox.hand(withdrawn("x" * 1_000))
            assert outbox.head.issuerseq == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await outbox.hand(withdrawn("two"))).issuerseq == 2
        with anyio.fail_after(5):
            await outbox.drained()
    await store(path, nc, "three")
    assert await reasons(nc) == ["one", "two", "three"]


async def test_events_are_sent_while_the_disk_is_full(nc, realm, path):
    await keep_pending(path, nc, "one", "two")
    async with running(path, nc) as outbox:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        try:
            with anyio.fail_after(5):
                await outbox.drained()
            await until(lambda: "cannot write the outbox" in outbox.trouble)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await until(lambda: not outbox.trouble)
    assert await reasons(nc) == ["one", "two"]


async def test_restarting_does_not_make_the_file_grow(nc, realm, path):
    await store(path, nc, *(f"reason {n}" for n in range(20)))
    size = path.stat().st_size
    for _ in range(25):
        await drain(path, nc)
    assert path.stat().st_size == size
    assert [file.name for file in path.parent.glob("outbox*")] == ["outbox.db"]
    assert len(await records(nc)) == 20
