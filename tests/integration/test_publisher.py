"""A publisher's events are stored once and in its chain, whatever happens to acknowledgements."""

import anyio
import pytest

from bus_kit import ISSUER, REALM, client, fill, until, withdrawn
from meshnet_bus.api import ApiError, StreamApi
from meshnet_bus.client import Unreachable, closing
from meshnet_bus.place import KeyInUse, PlaceLost
from meshnet_bus.publisher import NotAcknowledged, Publisher
from meshnet_bus.stream import read_state, stream_config
from meshnet_events.envelope import ChainHead, SignedEvent, sign_event
from meshnet_events.gate import Gate
from meshnet_events.keys import EventKey
from meshnet_events.screened import follow


async def chain(nc):
    """The events of the stream, each proved to follow the one before; fails when one does not."""
    api, gate, head, events = StreamApi(nc, REALM), Gate(REALM), ChainHead(), []
    for sequence in range(1, (await read_state(api)).last_sequence + 1):
        record = await api.leader_record(sequence)
        event = gate.screen(record.body, record.subject).verified()
        head = follow(head, event)
        assert isinstance(head, ChainHead), head
        events.append(event)
    return events


def sign_next(publisher, reason):
    return sign_event(
        withdrawn(reason),
        key=ISSUER,
        realm=REALM,
        after=publisher.head,
        time_ms=0,
        chance=bytes(10),
    )


async def test_events_are_stored_in_a_chain_and_without_headers(nc, realm):
    publisher = Publisher(nc, realm, ISSUER)
    published = [await publisher.publish(withdrawn(f"reason {n}")) for n in range(3)]
    assert [each.sequence for each in published] == [1, 2, 3]
    assert not any(each.duplicate for each in published)
    events = await chain(nc)
    assert [event.digest for event in events] == [each.digest for each in published]
    assert [event.data.reason for event in events] == ["reason 0", "reason 1", "reason 2"]
    stored = await StreamApi(nc, realm).call(f"STREAM.MSG.GET.MESH_{realm}", {"seq": 2}, dict)
    assert "hdrs" not in stored["message"]


async def test_time_and_chance_are_the_callers_to_give(nc, realm):
    publisher = Publisher(nc, realm, ISSUER, clock_ms=lambda: 1_790_000_000_123, chance=bytes)
    await publisher.publish(withdrawn())
    body = (await StreamApi(nc, realm).leader_record(1)).body
    assert b'"time":"2026-09-21T14:13:20.123Z"' in body
    time_hex = f"{1_790_000_000_123:012x}"
    assert f'"id":"{time_hex[:8]}-{time_hex[8:]}-7000-8000-000000000000"'.encode() in body


async def test_the_place_in_the_chain_is_recovered_from_the_stream(nc, realm):
    first = Publisher(nc, realm, ISSUER)
    assert await first.resume() == ChainHead()
    await first.publish(withdrawn("one"))
    await fill(nc, 1, issuer="UOTHER")
    again = Publisher(nc, realm, ISSUER)
    assert await again.resume() == first.head
    assert (await again.publish(withdrawn("two"))).sequence == 3
    assert again.head.issuerseq == 2


async def test_a_last_record_that_the_key_did_not_sign_gives_no_place(nc, realm):
    await Publisher(nc, realm, ISSUER).publish(withdrawn())
    await fill(nc, 1, body=b'{"event":{},"sig":""}')
    with pytest.raises(PlaceLost, match="no event that this key signed"):
        await Publisher(nc, realm, ISSUER).resume()


async def test_calls_from_many_tasks_give_one_chain(nc, realm):
    publisher = Publisher(nc, realm, ISSUER)
    async with anyio.create_task_group() as group:
        for n in range(20):
            group.start_soon(publisher.publish, withdrawn(f"reason {n}"))
    assert len(await chain(nc)) == 20


async def test_a_lost_acknowledgement_leaves_exactly_one_record(server, nc, realm):
    publisher = Publisher(nc, realm, ISSUER, ack_timeout_s=0.2)
    await publisher.publish(withdrawn("before"))
    published = []

    async def publish():
        published.append(await publisher.publish(withdrawn("during")))

    async with anyio.create_task_group() as group:
        server.pause()
        group.start_soon(publish)
        await anyio.sleep(0.7)  # several time-outs; what was sent waits in the server's socket
        assert not published
        server.resume()
    assert published[0].sequence == 2
    assert published[0].duplicate
    assert [event.data.reason for event in await chain(nc)] == ["before", "during"]


async def test_an_event_that_a_killed_server_never_got_is_stored_once_it_is_back(server, nc, realm):
    publisher = Publisher(nc, realm, ISSUER, ack_timeout_s=0.2)
    await publisher.publish(withdrawn("before"))
    server.kill()
    async with anyio.create_task_group() as group:
        group.start_soon(publisher.publish, withdrawn("during"))
        await anyio.sleep(0.3)
        await server.start()
    assert [event.data.reason for event in await chain(nc)] == ["before", "during"]


async def test_an_event_that_got_lost_is_sent_again(nc, realm, monkeypatch):
    publisher = Publisher(nc, realm, ISSUER, ack_timeout_s=0.2)
    append, sent = StreamApi.append, []

    async def lose_the_first(api, issuer, body):
        sent.append(body)
        return await append(api, "nobody.listens.here" if len(sent) == 1 else issuer, body)

    monkeypatch.setattr(StreamApi, "append", lose_the_first)
    published = await publisher.publish(withdrawn())
    assert not published.duplicate
    assert sent[0] == sent[1]
    assert len(await chain(nc)) == 1


async def test_a_stale_answer_is_not_taken_for_a_lost_event(nc, realm, monkeypatch):
    publisher = Publisher(nc, realm, ISSUER)
    await publisher.publish(withdrawn("before"))
    old = await StreamApi(nc, realm).last_record_of(ISSUER.public)
    append, last_record_of, looks = StreamApi.append, StreamApi.last_record_of, []

    async def lose_the_acknowledgement(api, issuer, body):
        await append(api, issuer, body)
        return await append(api, "nobody.listens.here", body)

    async def stale_at_first(api, issuer):
        looks.append(issuer)
        return old if len(looks) == 1 else await last_record_of(api, issuer)

    monkeypatch.setattr(StreamApi, "append", lose_the_acknowledgement)
    monkeypatch.setattr(StreamApi, "last_record_of", stale_at_first)
    assert (await publisher.publish(withdrawn("after"))).duplicate
    assert len(looks) == 2
    assert len(await chain(nc)) == 2


async def test_two_processes_with_one_key_are_found_out(server, nc, realm):
    first = Publisher(nc, realm, ISSUER, trust_ack_for_s=0)
    await first.publish(withdrawn("common"))
    async with closing(await client(server)) as elsewhere:
        second = Publisher(elsewhere, realm, ISSUER)
        await second.publish(withdrawn("second"))
    with pytest.raises(KeyInUse, match="another process has this key"):
        await first.publish(withdrawn("first"))
    with pytest.raises(KeyInUse):
        await first.publish(withdrawn("first again"))
    assert [event.data.reason for event in await chain(nc)] == ["common", "second"]


async def test_a_fork_at_the_same_place_is_found_out(nc, realm):
    trusting = Publisher(nc, realm, ISSUER, trust_ack_for_s=60)
    looking = Publisher(nc, realm, ISSUER, trust_ack_for_s=0)
    await trusting.publish(withdrawn("common"))
    await looking.publish(withdrawn("one"))
    await trusting.publish(withdrawn("another"))
    with pytest.raises(KeyInUse, match=r"sequence 3 holds event 2 .*it is at 2"):
        await looking.publish(withdrawn("third"))


async def test_a_cancelled_publish_is_settled_before_the_next_event(server, nc, realm):
    publisher = Publisher(nc, realm, ISSUER, ack_timeout_s=0.2)
    await publisher.publish(withdrawn("one"))
    server.pause()
    with anyio.move_on_after(0.3) as scope:
        await publisher.publish(withdrawn("two"))
    assert scope.cancelled_caught
    server.resume()
    await publisher.publish(withdrawn("three"))
    assert [event.data.reason for event in await chain(nc)] == ["one", "two", "three"]


async def test_giving_up_is_bounded_and_said(server, nc, realm):
    publisher = Publisher(nc, realm, ISSUER, ack_timeout_s=0.1, give_up_after_s=0.5)
    await publisher.publish(withdrawn("one"))
    server.pause()
    with anyio.fail_after(2), pytest.raises(NotAcknowledged, match="may or may not be stored"):
        await publisher.publish(withdrawn("two"))
    server.resume()
    await publisher.publish(withdrawn("three"))
    assert [event.data.reason for event in await chain(nc)] == ["one", "two", "three"]


async def test_a_server_that_says_not_now_is_asked_again_until_time_is_up(nc, realm):
    publisher = Publisher(nc, realm, ISSUER, give_up_after_s=0.5)
    await publisher.publish(withdrawn("one"))
    api = StreamApi(nc, realm)
    await api.call(f"STREAM.UPDATE.MESH_{realm}", stream_config(realm) | {"max_msgs": 1}, dict)
    with pytest.raises(NotAcknowledged, match="maximum messages exceeded"):
        await publisher.publish(withdrawn("two"))
    await api.call(f"STREAM.UPDATE.MESH_{realm}", stream_config(realm), dict)
    await publisher.publish(withdrawn("three"))
    assert [event.data.reason for event in await chain(nc)] == ["one", "two", "three"]


async def test_giving_up_tells_this_events_trouble_and_not_an_earlier_ones(server, nc, realm):
    publisher = Publisher(nc, realm, ISSUER, ack_timeout_s=2, give_up_after_s=0.5)
    await publisher.resume()
    server.kill()
    await until(lambda: nc.outages)
    with pytest.raises(Unreachable, match=r"within 0\.5 s \(not connected\)"):
        await publisher.publish(withdrawn("one"))
    await server.start()
    await publisher.publish(withdrawn("two"))
    server.pause()
    with pytest.raises(NotAcknowledged, match=r"within 0\.5 s \(no answer\)"):
        await publisher.publish(withdrawn("three"))
    server.resume()


async def test_what_was_never_sent_is_not_sent_later(server, nc, realm):
    publisher = Publisher(nc, realm, ISSUER, ack_timeout_s=0.1, give_up_after_s=0.3)
    await publisher.resume()
    server.pause()
    with pytest.raises(Unreachable, match="could not be sent"):
        await publisher.publish(withdrawn("never"))
    server.resume()
    await publisher.publish(withdrawn("one"))
    assert [event.data.reason for event in await chain(nc)] == ["one"]


async def test_a_refused_event_takes_no_place_in_the_chain(nc, realm):
    publisher = Publisher(nc, realm, ISSUER)
    await publisher.publish(withdrawn("one"))
    api = StreamApi(nc, realm)
    await api.call(f"STREAM.UPDATE.MESH_{realm}", stream_config(realm) | {"max_msg_size": 9}, dict)
    with pytest.raises(ApiError, match="message size exceeds maximum allowed"):
        await publisher.publish(withdrawn("refused"))
    await api.call(f"STREAM.UPDATE.MESH_{realm}", stream_config(realm), dict)
    await publisher.publish(withdrawn("two"))
    assert [event.data.reason for event in await chain(nc)] == ["one", "two"]


async def test_an_event_signed_earlier_is_published_as_it_is(nc, realm):
    publisher = Publisher(nc, realm, ISSUER)
    await publisher.resume()
    signed = sign_next(publisher, "kept")
    published = await publisher.publish_signed(signed)
    assert (published.sequence, published.duplicate) == (1, False)
    again = Publisher(nc, realm, ISSUER)
    assert await again.publish_signed(signed) == type(published)(1, signed.head.digest, True)
    assert len(await chain(nc)) == 1


async def test_an_event_out_of_turn_is_refused(nc, realm):
    publisher = Publisher(nc, realm, ISSUER)
    await publisher.publish(withdrawn("one"))
    late = sign_next(publisher, "two")
    await publisher.publish(withdrawn("two, too"))
    await publisher.publish(withdrawn("three"))
    with pytest.raises(ValueError, match="event 2 does not follow the chain's 3"):
        await publisher.publish_signed(late)


async def test_a_fact_that_the_gate_would_refuse_is_not_sent(nc, realm):
    publisher = Publisher(nc, realm, ISSUER)
    with pytest.raises(ValueError, match="no fact of its type"):
        await publisher.publish(withdrawn("x" * 62_000))
    assert (await publisher.publish(withdrawn())).sequence == 1
    assert publisher.head.issuerseq == 1


async def test_an_event_that_the_gate_would_refuse_is_not_sent(nc, realm):
    publisher = Publisher(nc, realm, ISSUER)
    await publisher.resume()
    good = sign_next(publisher, "x")
    other_realm = sign_event(
        withdrawn(), key=ISSUER, realm="other", after=ChainHead(), time_ms=0, chance=bytes(10)
    )
    other_key = sign_event(
        withdrawn(),
        key=EventKey(bytes(31) + b"1"),
        realm=realm,
        after=ChainHead(),
        time_ms=0,
        chance=bytes(10),
    )
    not_json = SignedEvent(b"{", good.head)
    not_signed = SignedEvent(good.body.replace(b'"reason":"x"', b'"reason":"y"'), good.head)
    for signed, why in [
        (other_realm, "wrong-realm"),
        (other_key, "wrong-subject"),
        (not_json, "not-json"),
        (not_signed, "bad-signature"),
    ]:
        with pytest.raises(ValueError, match=f"the gate would refuse this event: {why}: .+"):
            await publisher.publish_signed(signed)
    lost = Publisher(nc, realm, ISSUER, head=ChainHead(3, "no digest"))
    with pytest.raises(ValueError, match=r"the gate would refuse this event: bad-envelope: .*prev"):
        await lost.publish(withdrawn())
    assert (await publisher.publish_signed(good)).sequence == 1
