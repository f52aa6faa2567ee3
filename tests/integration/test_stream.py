"""The realm's stream: configured as specified, and every difference named."""

import anyio
import msgspec
import pytest

from bus_kit import ISSUER, REALM, client, fill, until
from meshnet_bus.api import ApiError, StreamApi
from meshnet_bus.client import Unreachable, closing
from meshnet_bus.stream import (
    RealmExists,
    StreamDrift,
    create_realm,
    drift,
    provision,
    read_state,
    stream_config,
)
from meshnet_events.envelope import ChainHead, sign_event
from meshnet_events.facts import Policy, RealmCreated
from meshnet_events.keys import EventKey

OTHER = EventKey(bytes(31) + b"\1")


def first_event(key, *, chance=bytes(10)):
    fact = RealmCreated(
        realm=REALM,
        operators=(key.public,),
        policy=Policy(
            accept_declared_hosts=False,
            certify="recipe",
            enrolment="required",
            max_clock_skew_ms=60_000,
            max_report_age_ms=900_000,
            min_certifying_nodes=2,
            min_distinct_groups=1,
            min_distinct_hosts=2,
        ),
    )
    return sign_event(
        fact, key=key, realm=REALM, after=ChainHead(), time_ms=1_790_000_000_000, chance=chance
    )


async def reconfigure(nc, **changes):
    """Change the stream as an administrator could."""
    config = stream_config(REALM) | changes
    await StreamApi(nc, REALM).call(f"STREAM.UPDATE.MESH_{REALM}", config, dict)


async def test_it_is_configured_as_specified(nc):
    state = await provision(nc, REALM)
    config = dict(state.config)
    assert config.pop("metadata")["_nats.ver"].startswith("2.15")
    assert config == {
        "name": "MESH_demo",
        "subjects": ["mesh.demo.evt.*"],
        "storage": "file",
        "num_replicas": 1,
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_bytes": -1,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": 65_536,
        "duplicate_window": 100_000_000,
        "compression": "none",
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "allow_msg_ttl": False,
        "allow_rollup_hdrs": False,
        "mirror_direct": False,
        "sealed": False,
        "consumer_limits": {},
        "republish": {"src": "mesh.demo.evt.*", "dest": "mesh.demo.live.{{wildcard(1)}}"},
    }
    assert drift(state.config, REALM) == ()
    assert (state.first_sequence, state.last_sequence, state.messages) == (0, 0, 0)


async def test_provisioning_again_changes_nothing(nc):
    first = await provision(nc, REALM)
    await fill(nc, 2)
    again = await provision(nc, REALM)
    assert again.created == first.created
    assert again.last_sequence == again.messages == 2


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("allow_atomic", True),
        ("allow_batched", True),
        ("allow_direct", False),
        ("allow_msg_ttl", True),
        ("allow_rollup_hdrs", True),
        ("compression", "s2"),
        ("discard", "old"),
        ("duplicate_window", 120_000_000_000),
        ("max_age", 10**12),
        ("max_bytes", 10**9),
        ("max_msg_size", 1000),
        ("max_msgs", 10),
        ("max_msgs_per_subject", 1),
        ("no_ack", True),
        ("republish", None),
        ("sealed", True),
        ("subjects", ["mesh.demo.evt.*", "mesh.demo.more"]),
        ("subject_transform", {"src": "mesh.demo.evt.*", "dest": "mesh.demo.evt.x"}),
    ],
)
async def test_a_changed_member_is_named_and_the_stream_refused(nc, realm, member, value):
    changes = {member: value}
    if member == "allow_rollup_hdrs":
        # a server lets nobody deny purges and allow rollups: only a stream made so has it
        api = StreamApi(nc, realm)
        await api.call(f"STREAM.DELETE.MESH_{realm}", None, dict)
        changes["deny_purge"] = False
        await api.call(f"STREAM.CREATE.MESH_{realm}", stream_config(realm) | changes, dict)
    else:
        await reconfigure(nc, **changes)
    with pytest.raises(StreamDrift, match=f"{member} is ") as refused:
        await provision(nc, realm)
    named = {difference.partition(" is ")[0] for difference in refused.value.differences}
    # sealing implies these
    implied = {"sealed": {"discard", "deny_delete", "deny_purge"}}.get(member, set())
    assert named - implied <= changes.keys()
    assert member in named


def test_a_member_that_nobody_knows_yet_counts_unless_it_is_off():
    config = stream_config(REALM)
    assert drift(config | {"allow_time_travel": False}, REALM) == ()
    assert drift(config | {"allow_time_travel": True}, REALM) == (
        "allow_time_travel is True, expected None",
    )


@pytest.mark.parametrize(
    ("verb", "request_"), [("STREAM.MSG.DELETE", {"seq": 1}), ("STREAM.PURGE", {})]
)
async def test_no_record_can_be_deleted_or_purged(nc, realm, verb, request_):
    await fill(nc, 2)
    with pytest.raises(ApiError):
        await StreamApi(nc, realm).call(f"{verb}.MESH_{realm}", request_, dict)
    assert (await read_state(StreamApi(nc, realm))).messages == 2


async def test_each_record_is_republished_as_a_wake_up(nc, realm):
    woken = []

    async def note(message):
        woken.append((message.subject, message.data))

    await nc.subscribe("mesh.demo.live.*", cb=note)
    await fill(nc, 1, body=b"{1}")
    await until(lambda: woken)
    assert woken == [(f"mesh.demo.live.{ISSUER.public}", b"{1}")]


async def test_deleted_records_are_counted(nc):
    api = StreamApi(nc, REALM)
    config = stream_config(REALM) | {"deny_delete": False}
    await api.call(f"STREAM.CREATE.MESH_{REALM}", config, dict)
    await fill(nc, 3)
    await api.call(f"STREAM.MSG.DELETE.MESH_{REALM}", {"seq": 2}, dict)
    state = await read_state(api)
    assert (state.messages, state.last_sequence, state.deleted) == (2, 3, 1)


async def test_a_realm_begins_with_its_first_event_at_sequence_1(nc):
    first = first_event(ISSUER)
    created = await create_realm(nc, REALM, first, issuer=ISSUER.public)
    assert created.is_new
    assert created.state.last_sequence == 1
    record = await StreamApi(nc, REALM).leader_record(1)
    assert record.body == first.body
    assert record.subject == f"mesh.demo.evt.{ISSUER.public}"


async def test_creating_a_realm_again_with_the_same_event_changes_nothing(nc):
    first = first_event(ISSUER)
    await create_realm(nc, REALM, first, issuer=ISSUER.public)
    again = await create_realm(nc, REALM, first, issuer=ISSUER.public)
    assert not again.is_new
    assert again.state.last_sequence == 1


async def test_a_realm_of_someone_else_is_not_taken_over(nc):
    await create_realm(nc, REALM, first_event(OTHER), issuer=OTHER.public)
    with pytest.raises(RealmExists, match=OTHER.public):
        await create_realm(nc, REALM, first_event(ISSUER), issuer=ISSUER.public)
    assert (await read_state(StreamApi(nc, REALM))).last_sequence == 1


async def test_of_two_that_create_a_realm_at_once_one_does(server, nc):
    results = []

    async def create(connection, key):
        try:
            created = await create_realm(connection, REALM, first_event(key), issuer=key.public)
        except RealmExists as error:
            results.append(error)
        else:
            results.append(created)

    async with closing(await client(server)) as other, anyio.create_task_group() as group:
        group.start_soon(create, nc, ISSUER)
        group.start_soon(create, other, OTHER)
    assert sorted(type(result).__name__ for result in results) == ["CreatedRealm", "RealmExists"]
    assert (await read_state(StreamApi(nc, REALM))).last_sequence == 1


async def test_that_the_realm_is_new_is_for_the_server_to_say(nc, monkeypatch):
    """Whoever looked before the other's first event was there is refused by the expectation."""
    await create_realm(nc, REALM, first_event(OTHER), issuer=OTHER.public)
    read, looks = StreamApi.leader_record, []

    async def look_too_early(api, sequence):
        looks.append(sequence)
        return None if len(looks) == 1 else await read(api, sequence)

    monkeypatch.setattr(StreamApi, "leader_record", look_too_early)
    with pytest.raises(RealmExists):
        await create_realm(nc, REALM, first_event(ISSUER), issuer=ISSUER.public)
    assert (await read_state(StreamApi(nc, REALM))).last_sequence == 1


async def test_a_first_event_whose_acknowledgement_is_lost_is_found(server, nc, monkeypatch):
    await provision(nc, REALM)
    first = first_event(ISSUER)
    request = nc.request

    async def lose_the_acknowledgement(subject, payload=b"", **options):
        answer = await request(subject, payload, **options)
        if subject.startswith("mesh."):
            raise TimeoutError
        return answer

    monkeypatch.setattr(nc, "request", lose_the_acknowledgement)
    created = await create_realm(nc, REALM, first, issuer=ISSUER.public)
    assert created.state.last_sequence == 1


def test_requests_encode_what_the_server_shows():
    assert msgspec.json.decode(msgspec.json.encode(stream_config(REALM))) == stream_config(REALM)


@pytest.mark.parametrize("answer", [b'{"x":' + b"[" * 60_000, b"[]", b"", b"\xff"])
async def test_an_answer_that_is_not_jetstreams_is_none(nc, answer):
    """Whoever may answer on the stream's API may answer anything."""

    async def say(message):
        await message.respond(answer)

    await nc.subscribe("elsewhere.STREAM.INFO.>", cb=say)
    with pytest.raises(Unreachable, match="not JetStream's"):
        await read_state(StreamApi(nc, REALM, prefix="elsewhere"))
