"""A reader hands out every record once and in order, or says why the history is another."""

import asyncio
import shutil

import anyio
import pytest

from bus_kit import ISSUER, REALM, client, fill, until, wire
from meshnet_bus import feed as feed_module
from meshnet_bus import limits
from meshnet_bus import reader as reader_module
from meshnet_bus.api import StreamApi
from meshnet_bus.client import Unreachable, close
from meshnet_bus.feed import Feed
from meshnet_bus.history import FaultReason, FoldedPosition, HistoryFault, record_digest
from meshnet_bus.limits import raw_pull_rate
from meshnet_bus.local_server import LocalServer
from meshnet_bus.reader import Reader, read_until
from meshnet_bus.stream import provision, read_state, stream_config

SUBJECT = f"mesh.{REALM}.evt.{ISSUER.public}"


async def read_to(reader, last):
    """Read up to sequence `last`, within ten seconds."""
    records = []
    with anyio.fail_after(10):
        async for batch in reader.batches():
            assert batch
            records += batch
            if records[-1].sequence >= last:
                break
    return records


class Reading:
    """A reader at work in the background: what it handed out so far, and how it ended."""

    def __init__(self, reader):
        self.reader = reader
        self.records = []
        self.fault = None

    async def run(self):
        try:
            async for batch in self.reader.batches():
                self.records += batch
        except (HistoryFault, Unreachable) as fault:
            self.fault = fault

    @property
    def sequences(self):
        return [record.sequence for record in self.records]

    async def reached(self, last, seconds=8.0):
        await until(lambda: self.sequences[-1:] == [last] or self.fault, seconds)
        assert self.fault is None, self.fault
        assert self.sequences == list(range(self.sequences[0], last + 1))


@pytest.fixture
async def read():
    """Start readers in the background; they end with the test."""
    tasks = []

    async def run(reading):
        async with reading.reader:
            await reading.run()

    async def start(reader):
        reading = Reading(reader)
        tasks.append(asyncio.create_task(run(reading)))
        return reading

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def quick(monkeypatch):
    """Heartbeats, expiry and silence in tenths of the seconds that they take elsewhere."""
    monkeypatch.setattr(feed_module, "IDLE_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(feed_module, "_EXPIRES_S", 0.5)
    monkeypatch.setattr(reader_module, "_SILENCE_S", 0.3)


async def folded_at(nc, sequence):
    api = StreamApi(nc, REALM)
    record = await api.leader_record(sequence)
    return FoldedPosition((await read_state(api)).created, sequence, record_digest(record))


async def reconfigure(nc, **changes):
    config = stream_config(REALM) | changes
    await StreamApi(nc, REALM).call(f"STREAM.UPDATE.MESH_{REALM}", config, dict)


# ------------------------------------------------------------------------------------ reading


async def test_it_catches_up_and_follows_with_no_seam(nc, realm, read):
    await fill(nc, 3000, body=b"old")
    reading = await read(Reader(nc, realm))
    await reading.reached(3000)
    for _ in range(3):
        await fill(nc, 10, body=b"new")
    await reading.reached(3030)
    assert [r.body for r in reading.records] == [b"old"] * 3000 + [b"new"] * 30
    assert {r.subject for r in reading.records} == {SUBJECT}
    assert reading.reader.recoveries == 0


async def test_a_record_is_what_the_stream_holds(nc, realm):
    await fill(nc, 3, body="{é}".encode())
    async with Reader(nc, realm) as reader:
        records = await read_to(reader, 3)
    api = StreamApi(nc, realm)
    assert records == [await api.leader_record(sequence) for sequence in (1, 2, 3)]


async def test_it_starts_behind_any_position(nc, realm):
    await fill(nc, 20)
    for after in (0, 1, 19):
        async with Reader(nc, realm, after=after) as reader:
            records = await read_to(reader, 20)
        assert [r.sequence for r in records] == list(range(after + 1, 21))


async def test_a_caller_can_tell_that_the_tail_is_reached(nc, realm, read):
    reading = await read(Reader(nc, realm))
    assert not reading.reader.caught_up
    await until(lambda: reading.reader.caught_up)  # an empty stream has nothing to catch up with
    await fill(nc, 5)
    await reading.reached(5)
    assert reading.reader.caught_up
    assert reading.reader.last_known == 5

    seen = []
    async with Reader(nc, realm, window=4) as slow:
        async for batch in slow.batches():
            seen.append((slow.caught_up, slow.last_known))
            if batch[-1].sequence == 5:
                break
    assert seen[0] == (False, 5)
    assert seen[-1] == (True, 5)


async def test_where_it_stopped_is_where_the_next_one_goes_on(nc, realm):
    await fill(nc, 10)
    async with Reader(nc, realm, until=6) as reader:
        first = await read_to(reader, 6)
        folded = reader.folded
    assert folded == await folded_at(nc, 6)
    async with Reader(nc, realm, expect=folded) as reader:
        second = await read_to(reader, 10)
    assert [r.sequence for r in first + second] == list(range(1, 11))


async def test_a_replay_ends_where_it_was_told_to(nc, realm):
    await fill(nc, 300)
    for given, last in ((None, 300), (120, 120), (300, 300)):
        records = []
        async with await read_until(nc, realm, until=given) as reader:
            async for batch in reader.batches():
                records += batch
        assert [r.sequence for r in records] == list(range(1, last + 1))


async def test_a_replay_beyond_the_end_is_refused_rather_than_waited_for(nc, realm):
    await fill(nc, 3)
    with pytest.raises(ValueError, match="the stream ends at 3; cannot replay up to 4"):
        await read_until(nc, realm, until=4)


async def test_a_replay_gives_up_on_an_outage(server, nc, realm):
    await fill(nc, 3000)
    async with await read_until(nc, realm, give_up_after_s=0.3) as reader:
        server.kill()
        with pytest.raises(Unreachable, match="nothing came from MESH_demo"):
            await read_to(reader, 3000)


async def test_large_batches_are_put_together_while_there_is_more(nc, realm, monkeypatch):
    monkeypatch.setattr(reader_module, "LARGE", 1_000)
    monkeypatch.setattr(reader_module, "_LARGE_S", 60.0)
    await fill(nc, 2_600)
    batches = []
    with anyio.fail_after(20):
        async with Reader(nc, REALM, window=64) as reader:
            async for batch in reader.large_batches():
                batches.append(batch)
                if len(batches) == 3:
                    assert reader.caught_up, "the last there is was not waited with"
                    await fill(nc, 1)
                if len(batches) == 4:
                    break
    sequences = [record.sequence for batch in batches for record in batch]
    assert sequences == list(range(1, 2_602))
    first, second, rest, new = map(len, batches)
    assert all(1_000 <= size <= 1_064 for size in (first, second))
    assert (rest, new) == (2_600 - first - second, 1)


@pytest.mark.parametrize(("bound", "value"), [("_LARGE_BYTES", 6_400), ("_LARGE_S", 0.0)])
async def test_large_batches_are_bounded_in_bytes_and_time(nc, realm, monkeypatch, bound, value):
    monkeypatch.setattr(reader_module, bound, value)
    await fill(nc, 900, body=b"x" * 64)
    async with Reader(nc, REALM, window=50, until=790) as reader:
        sizes = [len(batch) async for batch in reader.large_batches()]
    assert sum(sizes) == 790
    assert max(sizes) <= 150


@pytest.mark.parametrize("told", [False, True], ids=["in silence", "until its feed breaks"])
async def test_what_has_come_is_not_held_back_by_what_does_not_come(nc, realm, monkeypatch, told):
    deliver = Feed.deliver

    def deaf(self, subject, reply, body, headers):
        is_record = reply.startswith(b"$JS.ACK.")
        if int(reply.split(b".")[-4]) <= 500 if is_record else told:
            deliver(self, subject, reply, body, headers)

    monkeypatch.setattr(Feed, "deliver", deaf)
    if told:
        monkeypatch.setattr(reader_module, "_LARGE_S", 60.0)
    await fill(nc, 900)
    with anyio.fail_after(5 if told else 2):
        async with Reader(nc, REALM) as reader:
            async for batch in reader.large_batches():
                assert [record.sequence for record in batch] == list(range(1, 501))
                assert not reader.caught_up
                break


async def test_what_is_left_over_at_the_end_of_a_replay_is_a_large_batch_too(
    nc, realm, monkeypatch
):
    monkeypatch.setattr(reader_module, "_LARGE_S", 60.0)
    await fill(nc, 900)
    async with Reader(nc, REALM, window=50, until=790) as reader:
        assert [len(batch) async for batch in reader.large_batches()] == [790]


async def test_it_waits_idle_without_losing_its_consumer(nc, realm, read, quick):
    reading = await read(Reader(nc, realm))
    await fill(nc, 1)
    await reading.reached(1)
    await anyio.sleep(1.5)  # three times what a request lives
    await fill(nc, 1)
    await reading.reached(2)
    assert reading.reader.recoveries == 0


async def test_it_leaves_no_consumer_behind(nc, realm):
    await fill(nc, 10)
    async with Reader(nc, realm) as reader:
        await read_to(reader, 10)
    info = await StreamApi(nc, realm).call(f"STREAM.INFO.MESH_{realm}", None, dict)
    assert info["state"]["consumer_count"] == 0


@pytest.mark.parametrize(
    ("subject", "headers", "reply"),
    [
        (SUBJECT.encode(), b"NATS/1.0\r\nno colon\r\n\xff: \xfe\r\n\r\n", b""),
        (
            SUBJECT.encode(),
            b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n",
            b"",
        ),
        (SUBJECT.encode(), b"", b"\xff\xfe"),
        (SUBJECT.encode(), b"", b"r\x0bs"),
        (b"mesh.demo.evt.\xff\xfe", b"", b""),
        (b"mesh.demo.evt.a\x0b1", b"", b""),
        (b"mesh.demo.evt.a\x0c1", b"NATS/1.0\r\n\r\n", b"\x0c"),
    ],
)
async def test_no_stored_bytes_end_it(nc, realm, subject, headers, reply):
    await fill(nc, 1)
    await wire(nc, subject, b"hostile", headers=headers, reply=reply)
    await fill(nc, 1)
    async with Reader(nc, realm, check_every_s=0) as reader:
        records = await read_to(reader, 3)
        assert reader.recoveries == 0
    assert [r.body for r in records] == [b"{}", b"hostile", b"{}"]
    # and a history that ends in such a record is recognised again
    expect = FoldedPosition(reader.folded.created, 2, record_digest(records[1]))
    async with Reader(nc, realm, expect=expect) as reader:
        assert [r.sequence for r in await read_to(reader, 3)] == [3]


# ------------------------------------------------------------------------------------ memory


@pytest.fixture
def arrived(monkeypatch):
    """The bodies of all records that came in, handed out or not."""
    deliver, bodies = Feed.deliver, []

    def count(self, subject, reply, body, headers):
        if reply.startswith(b"$JS.ACK."):
            bodies.append(body)
        deliver(self, subject, reply, body, headers)

    monkeypatch.setattr(Feed, "deliver", count)
    return bodies


async def test_a_slow_caller_makes_the_server_wait_and_not_the_memory_grow(nc, realm, arrived):
    await fill(nc, 5000)
    last = 0
    async with Reader(nc, realm, window=200) as reader:
        async for batch in reader.batches():
            assert batch[0].sequence == last + 1
            assert len(batch) <= 200
            last = batch[-1].sequence
            if last > 2000:
                break
            # four requests of 50 each: at least three are out while the caller is slow
            await until(lambda last=last: len(arrived) - last > 150)
            await anyio.sleep(0.02)  # and for anything that should not come
            assert len(arrived) - last <= 200
        assert reader.recoveries == 0


async def test_large_records_are_bounded_in_bytes(nc, realm, monkeypatch, arrived):
    monkeypatch.setattr(feed_module, "_REQUEST_BYTES", 300_000)
    await fill(nc, 120, body=b"x" * 60_000)
    last = 0
    async with Reader(nc, realm) as reader:
        async for batch in reader.batches():
            assert batch[0].sequence == last + 1
            last = batch[-1].sequence
            if last == 120:
                break
            await until(lambda last=last: len(arrived) > last)
            await anyio.sleep(0.02)
            assert sum(map(len, arrived[last:])) <= 4 * 300_000
        assert reader.recoveries == 0


# ------------------------------------------------------------------------------------ recovering


async def test_it_goes_on_after_the_server_was_killed_and_restarted(server, nc, realm, read):
    await fill(nc, 2000)
    reading = await read(Reader(nc, realm, window=100))
    await until(lambda: len(reading.records) >= 300)
    server.kill()
    await until(lambda: reading.reader.state == "recovering")
    assert not reading.reader.caught_up
    await server.start()
    await reading.reached(2000)
    await fill(nc, 10)
    await reading.reached(2010)
    assert reading.reader.recoveries >= 1


async def test_it_goes_on_after_its_connection_was_cut(nc, realm, read):
    reading = await read(Reader(nc, realm))
    await fill(nc, 10)
    await reading.reached(10)
    nc._transport._io_writer.transport.abort()
    await until(lambda: nc.outages == 1)
    await until(lambda: nc.is_connected)
    await fill(nc, 10)
    await reading.reached(20)


async def test_it_goes_on_when_its_consumer_is_deleted_underneath(nc, realm, read):
    reading = await read(Reader(nc, realm))
    await fill(nc, 10)
    await reading.reached(10)
    api = StreamApi(nc, realm)
    names = (await api.call(f"CONSUMER.NAMES.MESH_{realm}", None, dict))["consumers"]
    for name in names:
        await api.call(f"CONSUMER.DELETE.MESH_{realm}.{name}", None, dict)
    await fill(nc, 10)
    await reading.reached(20)
    assert reading.reader.recoveries == 1


async def test_it_goes_on_after_the_server_was_paused(server, nc, realm, read, quick):
    reading = await read(Reader(nc, realm, request_timeout_s=0.2))
    await fill(nc, 10)
    await reading.reached(10)
    server.pause()
    await until(lambda: reading.reader.recoveries)
    server.resume()
    await fill(nc, 10)
    await reading.reached(20)


async def test_a_record_that_got_lost_on_the_way_is_read_by_the_next_feed(
    nc, realm, read, monkeypatch
):
    deliver, lost = Feed.deliver, []

    def lose_one(self, subject, reply, body, headers):
        if body == b"lose me" and not lost:
            lost.append(body)
            return
        deliver(self, subject, reply, body, headers)

    monkeypatch.setattr(Feed, "deliver", lose_one)
    await fill(nc, 5)
    await fill(nc, 1, body=b"lose me")
    await fill(nc, 5)
    reading = await read(Reader(nc, realm))
    await reading.reached(11)
    assert lost
    assert (reading.reader.recoveries, reading.reader.filled) == (1, 0)


async def test_the_last_record_that_got_lost_is_missed_by_the_heartbeat(
    nc, realm, read, quick, monkeypatch
):
    deliver, lost = Feed.deliver, []

    def lose_one(self, subject, reply, body, headers):
        if body == b"lose me" and not lost:
            lost.append(body)
            return
        deliver(self, subject, reply, body, headers)

    monkeypatch.setattr(Feed, "deliver", lose_one)
    reading = await read(Reader(nc, realm))
    await fill(nc, 1)
    await fill(nc, 1, body=b"lose me")
    await reading.reached(2)
    assert lost


async def test_records_that_no_feed_delivers_are_read_one_by_one(nc, realm, read, monkeypatch):
    deliver = Feed.deliver

    def always_lose(self, subject, reply, body, headers):
        if body != b"lose me":
            deliver(self, subject, reply, body, headers)

    monkeypatch.setattr(Feed, "deliver", always_lose)
    await fill(nc, 5)
    await fill(nc, 3, body=b"lose me")
    await fill(nc, 5)
    reading = await read(Reader(nc, realm))
    await reading.reached(13)
    assert [r.body for r in reading.records[5:8]] == [b"lose me"] * 3
    assert reading.reader.filled == 3


async def test_records_that_come_twice_are_handed_out_once(nc, realm, read, monkeypatch):
    deliver = Feed.deliver

    def repeat(self, subject, reply, body, headers):
        deliver(self, subject, reply, body, headers)
        deliver(self, subject, reply, body, headers)

    monkeypatch.setattr(Feed, "deliver", repeat)
    await fill(nc, 500)
    reading = await read(Reader(nc, realm))
    await reading.reached(500)


async def test_a_client_closed_for_good_ends_it_with_a_clear_error(server, realm, read):
    other = await client(server)
    reading = await read(Reader(other, realm))
    await until(lambda: reading.reader.state == "reading")
    await close(other)
    await until(lambda: reading.fault)
    assert isinstance(reading.fault, Unreachable)
    assert "closed for good" in str(reading.fault)


async def test_it_gives_up_on_an_outage_when_told_how_long_to_wait(server, nc, realm, read):
    await fill(nc, 10)
    reading = await read(Reader(nc, realm, give_up_after_s=0.5))
    await reading.reached(10)
    await anyio.sleep(1.2)  # waiting at the tail of a stream is no outage
    assert reading.reader.state == "reading"
    server.kill()
    start = anyio.current_time()
    await until(lambda: reading.fault)
    assert anyio.current_time() - start > 0.4
    assert isinstance(reading.fault, Unreachable)
    assert "nothing came from MESH_demo behind 10 within 0.5 s (not connected)" in str(
        reading.fault
    )


async def test_it_gives_up_on_a_server_that_says_nothing(server, nc, realm, read, quick):
    await fill(nc, 10)
    reading = await read(Reader(nc, realm, give_up_after_s=0.6))
    await reading.reached(10)
    server.pause()
    await until(lambda: reading.fault, 3)  # sooner than one request times out
    server.resume()
    assert isinstance(reading.fault, Unreachable)


async def test_it_gives_up_when_feeds_open_and_bring_nothing(nc, realm, read, quick, monkeypatch):
    monkeypatch.setattr(Feed, "deliver", lambda *message: None)
    await fill(nc, 10)
    reading = await read(Reader(nc, realm, give_up_after_s=0.7))
    await until(lambda: reading.fault)
    assert isinstance(reading.fault, Unreachable)
    assert reading.reader.recoveries >= 2


async def test_a_callers_own_time_is_not_counted_as_an_outage(server, nc, realm):
    await fill(nc, 10)
    async with Reader(nc, realm, until=20, give_up_after_s=0.5) as reader:
        async for _ in reader.batches():
            if not nc.outages:
                server.kill()
                await anyio.sleep(0.7)
                await server.start()
                await until(lambda: nc.outages and nc.is_connected)
                await fill(nc, 10)
        assert (reader.position, reader.recoveries) == (20, 1)


# ------------------------------------------------------------------------------------ another history


async def fault_of(nc, expect=None, after=0):
    with anyio.fail_after(5), pytest.raises(HistoryFault) as raised:
        async with Reader(nc, REALM, expect=expect, after=after) as reader:
            await read_to(reader, 10_000)
    assert reader.state == "faulted"
    assert reader.fault is raised.value
    assert not reader.caught_up
    return raised.value.reason


async def recreate(nc, count):
    await StreamApi(nc, REALM).call(f"STREAM.DELETE.MESH_{REALM}", None, dict)
    await provision(nc, REALM)
    if count:
        await fill(nc, count)


async def test_a_realm_that_does_not_exist_is_said_at_once(nc):
    assert await fault_of(nc) is FaultReason.NO_STREAM


async def test_a_recreated_stream_is_refused_at_the_start(nc, realm):
    await fill(nc, 10)
    expect = await folded_at(nc, 5)
    await recreate(nc, 10)
    assert await fault_of(nc, expect) is FaultReason.RECREATED


async def test_a_recreated_stream_is_found_out_while_reading(nc, realm, read):
    await fill(nc, 10)
    reading = await read(Reader(nc, realm))
    await reading.reached(10)
    await recreate(nc, 20)
    await until(lambda: reading.fault)
    assert reading.fault.reason in (FaultReason.RECREATED, FaultReason.NO_STREAM)
    assert reading.sequences == list(range(1, 11))


async def test_a_changed_configuration_is_found_out_by_the_regular_look(nc, realm, read):
    await fill(nc, 10)
    reading = await read(Reader(nc, realm, check_every_s=0.1))
    await reading.reached(10)
    await reconfigure(nc, max_age=3600 * 10**9)
    await until(lambda: reading.fault)
    assert reading.fault.reason is FaultReason.DRIFT
    assert "max_age is 3600000000000, expected 0" in reading.fault.detail


async def test_an_older_copy_of_the_store_is_found_out(tmp_path, read):
    """`created` is the same and the first records are: only the end is missing, or is another."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    async with LocalServer(live) as server:
        nc = await client(server)
        await provision(nc, REALM)
        await fill(nc, 10)
        await server.stop()
        shutil.copytree(live, copy)
        await server.start()
        await until(lambda: nc.is_connected)
        await fill(nc, 10)
        reading = await read(Reader(nc, REALM))
        await reading.reached(20)
        expect = reading.reader.folded

        await server.stop()
        shutil.rmtree(live / "jetstream")
        shutil.copytree(copy / "jetstream", live / "jetstream")
        await server.start()
        await until(lambda: reading.fault)
        assert reading.fault.reason is FaultReason.TRUNCATED
        assert reading.sequences == list(range(1, 21))
        assert await fault_of(nc, after=15) is FaultReason.TRUNCATED

        await fill(nc, 30)
        assert await fault_of(nc, expect) is FaultReason.REWRITTEN
        await close(nc)


async def test_a_stream_that_lost_its_beginning_is_refused(nc, realm):
    await fill(nc, 10)
    await reconfigure(nc, max_msgs=4, discard="old")
    await reconfigure(nc)
    assert await fault_of(nc) is FaultReason.FIRST_SEQUENCE


async def test_a_stream_with_a_record_removed_from_its_middle_is_refused(nc, realm):
    await fill(nc, 1, issuer="UFIRST")
    await fill(nc, 4, issuer="USECOND")
    expect = await folded_at(nc, 2)
    await reconfigure(nc, max_msgs_per_subject=2)
    await reconfigure(nc)
    assert await fault_of(nc) is FaultReason.MISSING_RECORDS
    assert await fault_of(nc, expect) is FaultReason.MISSING_RECORDS
    assert await fault_of(nc, after=2) is FaultReason.MISSING_RECORDS


@pytest.mark.parametrize("change", ["digest", "created"])
async def test_what_was_folded_must_be_what_is_there(nc, realm, change):
    await fill(nc, 5)
    expect = await folded_at(nc, 5)
    wrong = {
        "digest": FoldedPosition(expect.created, 5, "0" * 64),
        "created": FoldedPosition("2001-01-01T00:00:00Z", 5, expect.digest),
    }[change]
    reason = {"digest": FaultReason.REWRITTEN, "created": FaultReason.RECREATED}[change]
    assert await fault_of(nc, wrong) is reason


def test_a_position_and_another_expectation_contradict_each_other():
    with pytest.raises(ValueError, match="after is 4; expect was folded to 5"):
        Reader(None, REALM, after=4, expect=FoldedPosition("", 5, ""))


# ------------------------------------------------------------------------------------ speed


async def test_the_limit_is_measured_on_the_same_stream(server, nc, realm):
    with pytest.raises(ValueError, match="is empty"):
        await raw_pull_rate(server.url, realm)
    await fill(nc, 2000)
    assert await raw_pull_rate(server.url, realm) > 1000


async def test_the_limit_is_not_waited_for_where_nobody_answers(server, monkeypatch):
    monkeypatch.setattr(limits, "_CONNECT_TIMEOUT_S", 0.3)
    server.pause()
    start = anyio.current_time()
    with pytest.raises(TimeoutError):
        await raw_pull_rate(server.url, REALM)
    assert anyio.current_time() - start < 1.5
    server.resume()
