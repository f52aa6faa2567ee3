"""Who is refused at the opening of a session, with which code, and what is published of it by whom."""

import os
import uuid
from pathlib import Path

import anyio
import msgspec
import pytest

from bus_kit import until
from meshnet_bus.asker import QueryRefused
from meshnet_bus.client import Unreachable
from meshnet_bus.outbox_file import OutboxFull
from meshnet_events import forms
from meshnet_events.keys import EventKey
from meshnet_events.queries import NOT_FOUND
from meshnet_events.session import Pair
from meshnet_node.backends import Step
from meshnet_node.handshake import presented_in
from meshnet_node.recipe_identity import ShardIdentity
from meshnet_node.session.failure import SessionFailed, reason_of
from meshnet_node.session.link import Request, ask_key, open_link
from meshnet_node.session.node import Limits, ServedShard
from meshnet_node.session.retry import try_again
from meshnet_proto import shard_runtime_pb2 as pb
from session_kit import (
    ARTIFACT,
    ATTESTED,
    LAYERS,
    QUICK,
    RECIPE,
    SHOOK_HANDS,
    VOCABULARY,
    BrokenShard,
    NoTextShard,
    ToyShard,
    freed,
    lab,
    served,
    stranger,
    tokens_of,
)

OTHER_RECIPE = msgspec.structs.replace(RECIPE, kv_dtype="float32")


def a_uuid():
    return str(uuid.uuid4())


async def refusal(lab_, *hops, caller=None, **plan):
    """What the driver of a route hears that cannot be opened."""
    with pytest.raises(SessionFailed) as caught:
        async with lab_.open(*hops, caller=caller, **plan):
            pass
    return caught.value


def said(*parts):
    return [list(part.said) for part in parts]


# -- forms and proofs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "member"),
    [
        ({"purpose": 0}, "purpose"),
        ({"purpose": 77}, "purpose"),
        ({"realm": "other"}, "realm"),
        ({"route_session_id": ""}, "route_session_id"),
        ({"route_session_id": "x" * 129}, "route_session_id"),
        ({"route_epoch": 2**53}, "route_epoch"),
        ({"nonce": b"short"}, "nonce"),
        ({"caller_boot_id": "me"}, "caller_boot_id"),
        ({"responder_boot_id": "ABCDEF00-0000-0000-0000-000000000000"}, "responder_boot_id"),
        ({"shard_id": "Main"}, "shard_id"),
        ({"shard_id": "m" * 100_000}, "shard_id"),
        ({"range": pb.ShardRange(start=3, end=3)}, "range"),
        ({"hop": 64}, "hops_after"),
        ({"hops_after": [pb.NextHop()] * 64}, "hops_after"),
        ({"hops_after": [pb.NextHop()]}, "hops_after[0].node"),
    ],
)
async def test_a_member_that_is_not_of_its_form_is_named(change, member):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        async with stranger(lab_, part) as caller:
            error = await caller.refused(part, **change)
        assert error.code == pb.ERROR_CODE_PROTOCOL_VIOLATION
        assert error.detail.startswith(f"open.{member}")
        assert not error.retryable
        assert said(part) == [[]]
        await freed(part)


@pytest.mark.parametrize(
    ("change", "member"),
    [
        ({"node": "U" + "A" * 55}, "node"),
        ({"boot_id": "-"}, "boot_id"),
        ({"shard_id": ""}, "shard_id"),
        ({"endpoint": "http://127.0.0.1:1"}, "endpoint"),
        ({"endpoint": f"grpc://{'a' * 1100}:1"}, "endpoint"),
        ({"start": 4, "end": 4}, "range"),
    ],
)
async def test_a_hop_after_that_is_not_of_its_form_is_named(change, member):
    async with lab() as lab_:
        part = await lab_.start(0, 3)
        after = part.hop(start=3, end=LAYERS)
        async with stranger(lab_, part) as caller:
            error = await caller.refused(part, msgspec.structs.replace(after, **change))
        assert error.detail.startswith(f"open.hops_after[0].{member}")


async def test_no_long_text_of_a_stranger_is_remembered():
    # answers of patterns are cached by their text: a stranger could fill the memory with them
    async with lab() as lab_:
        part = await lab_.start(0, 3)
        known = (forms.is_shard_id.cache_info().currsize, forms.is_endpoint.cache_info().currsize)
        for i in range(8):
            after = part.hop(start=3, end=LAYERS, endpoint=f"grpc://{'a' * 50_000}{i}:1")
            async with stranger(lab_, part) as caller:
                await caller.refused(part, after)
            async with stranger(lab_, part) as caller:
                await caller.refused(part, shard_id=f"{'b' * 50_000}{i}")
        assert forms.is_shard_id.cache_info().currsize <= known[0] + 1
        assert forms.is_endpoint.cache_info().currsize <= known[1] + 1


async def test_no_key_is_taken_for_another():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        for key in ("", "U" + "A" * 55, part.key.public[:-1], "N" + part.key.public[1:]):
            async with stranger(lab_, part) as caller:
                error = await caller.refused(part, key=lab_.driver_key, proof=b"0" * 64)
                assert error.code == pb.ERROR_CODE_BAD_PROOF
            async with stranger(lab_, part) as caller:
                frame = await caller.opening(part)
                frame.key = key
                await caller.say(frame)
                assert (await caller.last_word()).detail.startswith("open.key")


MALLORY = EventKey(bytes(range(32)))
OTHER = EventKey(bytes(range(1, 33)))
PRESENTED = presented_in(ShardIdentity(ARTIFACT, RECIPE, 0, LAYERS).fingerprint.to_proto())


@pytest.mark.parametrize(
    "change",
    [
        {"terms": {"realm": "other"}},
        {"terms": {"route_epoch": 1}},
        {"terms": {"route_session_id": "another"}},
        {"terms": {"keys": Pair(MALLORY.public, MALLORY.public)}},
        {"terms": {"nonces": Pair("0" * 64, "1" * 64)}},
        {"terms": {"boots": Pair(str(uuid.UUID(int=1)), str(uuid.UUID(int=2)))}},
        {"forge": lambda terms: terms.prove(OTHER, "caller", PRESENTED)},
        {
            "forge": lambda terms: terms.prove(
                MALLORY, "caller", msgspec.structs.replace(PRESENTED, recipe_id="another")
            )
        },
        {"forge": lambda terms: terms.prove(MALLORY, "responder", PRESENTED)},
        {
            "forge": lambda terms: msgspec.structs.replace(
                terms, nonces=Pair(terms.nonces.responder, terms.nonces.caller)
            ).prove(MALLORY, "caller", PRESENTED)
        },
        {"proof": b""},
        {"proof": b"\x00" * 64},
        {"proof": b"\x00" * 65},
    ],
)
async def test_a_proof_of_anything_else_is_none(change):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        lab_.tracker.knows(MALLORY.public, lab_.driver_boot)
        async with stranger(lab_, part) as caller:
            error = await caller.refused(part, key=MALLORY, hop=0, **change)
        assert error.code == pb.ERROR_CODE_BAD_PROOF
        assert not error.retryable
        assert said(part) == [[]]
        assert lab_.tracker.asked == []


async def test_an_opening_that_was_recorded_is_worth_nothing():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        async with stranger(lab_, part) as first, stranger(lab_, part) as second:
            recorded = await first.opening(part)
            await first.say(recorded)
            assert (await first.receive()).WhichOneof("frame") == "accepted"
            await second.receive()
            await second.say(recorded)
            assert (await second.last_word()).code == pb.ERROR_CODE_BAD_PROOF


async def test_a_nodes_proof_is_not_good_at_another_node():
    """A man in the middle hands the challenge of one node on as its own."""
    async with lab() as lab_:
        victim, target = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        async with stranger(lab_, target) as caller:
            # what the victim would sign for the middle: terms with the middle's key, not the target's
            error = await caller.refused(
                target,
                key=victim.key,
                terms={"keys": Pair(victim.key.public, MALLORY.public)},
                caller_boot_id=victim.node.boot_id,
                hop=1,
            )
        assert error.code == pb.ERROR_CODE_BAD_PROOF
        assert said(victim, target) == [[], []]


# -- boots, shards, ranges ---------------------------------------------------------------------------


async def test_an_older_boot_of_the_responder_is_refused():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        failure = await refusal(lab_, part.hop(boot_id=a_uuid()))
        assert failure.code == pb.ERROR_CODE_STALE_BOOT
        assert failure.retryable
        assert part.node.boot_id in failure.detail


async def test_a_process_of_the_past_takes_no_session():
    """Another process of the same key has registered since."""
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        lab_.tracker.lists(part, boot_id=a_uuid())
        failure = await refusal(lab_, part.hop())
        assert failure.code == pb.ERROR_CODE_STALE_BOOT


@pytest.mark.parametrize("change", [{"hop": 1}, {"purpose": pb.SESSION_PURPOSE_HANDSHAKE}])
async def test_an_older_boot_of_a_neighbour_is_refused_and_nothing_is_published(change):
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        for boot in (a_uuid(), a_uuid()):
            async with stranger(lab_, right) as caller:
                error = await caller.refused(right, key=left.key, caller_boot_id=boot, **change)
            assert error.code == pb.ERROR_CODE_STALE_BOOT
        assert said(left, right) == [[], []]


@pytest.mark.parametrize(
    ("hop", "after", "why"),
    [
        ({"shard_id": "other"}, [], "no shard 'other'"),
        ({"start": 0, "end": 4}, [(4, 6)], "are held here"),
        ({"start": 1, "end": 3}, [(3, 6)], "start at layer 1"),
        ({}, [(4, 6)], "do not join"),
        ({}, [(2, 6)], "do not join"),
        ({}, [(3, 5)], "end at layer 5"),
        ({}, [(3, 7)], "end at layer 7"),
        ({}, [], "end at layer 3"),
    ],
)
async def test_layers_that_do_not_join_are_refused(hop, after, why):
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        hops = [right.hop(start=start, end=end) for start, end in after]
        failure = await refusal(lab_, left.hop(**hop), *hops)
        assert (failure.code, failure.hop) == (pb.ERROR_CODE_RANGE_MISMATCH, 0)
        assert why in failure.detail
        assert said(left, right) == [[], []]


# -- fingerprints: what both sides publish -----------------------------------------------------------


async def test_a_driver_of_another_recipe_is_refused_and_nothing_is_published():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        failure = await refusal(lab_, part.hop(), caller=lab_.caller(recipe=OTHER_RECIPE))
        assert failure.code == pb.ERROR_CODE_FINGERPRINT_MISMATCH
        assert not failure.retryable
        assert "runtime_recipe_digest" in failure.detail
        assert said(part) == [[]]
        await freed(part)


async def differing(lab_):
    """Two nodes that differ although the tracker, which lags, lists both under one recipe."""
    left = await lab_.start(0, 3)
    right = await lab_.start(3, LAYERS)
    other = ShardIdentity(ARTIFACT, OTHER_RECIPE, 3, LAYERS)
    shard = ServedShard("main", other, right.shard.loaded, right.shard.facts, synthetic=False)
    right.node.shards = {"main": shard}
    right.shard = shard
    return left, right


async def test_neighbours_that_differ_both_publish_it_and_the_driver_hears_which_hop():
    async with lab() as lab_:
        left, right = await differing(lab_)
        failure = await refusal(lab_, left.hop(), right.hop())
        assert (failure.code, failure.hop) == (pb.ERROR_CODE_HOP_LOST, 1)
        assert failure.detail.startswith("fingerprint-mismatch")
        assert not failure.retryable
        (by_left,), (by_right,) = left.said, right.said
        assert (by_left.accepted, by_right.accepted) == (False, False)
        assert (by_left.role, by_right.role) == ("initiator", "responder")
        assert (by_left.peer, by_right.peer) == (right.key.public, left.key.public)
        ours = left.shard.fingerprint.to_dict()
        theirs = right.shard.fingerprint.to_dict()
        assert msgspec.to_builtins(by_left.local) == msgspec.to_builtins(by_right.presented) == ours
        assert msgspec.to_builtins(by_left.presented) == msgspec.to_builtins(by_right.local)
        assert msgspec.to_builtins(by_right.local) == theirs
        assert by_left.mismatches
        await freed(left, right)


async def test_a_pair_that_was_mended_meets_again_and_both_say_so():
    async with lab() as lab_:
        left, right = await differing(lab_)
        await refusal(lab_, left.hop(), right.hop())
        await refusal(lab_, left.hop(), right.hop())
        assert [len(part.said) for part in (left, right)] == [1, 1]
        lab_.tracker.nodes[right.key.public] = with_shards(lab_.tracker, right)
        right.node.shards = {"main": served("main", 3, LAYERS, loaded=ToyShard(3, LAYERS))}
        (refused,) = left.node.results.due(now_s=left.node.monotonic_s() + 3600)
        await try_again(left.node, refused)
        assert [fact.accepted for fact in left.said] == [False, True]
        await until(lambda: len(right.said.of(SHOOK_HANDS)) == 2)
        # to the responder it is a pair of its own: it met under another recipe before
        assert right.said[-1].accepted
        assert left.node.results.due(now_s=left.node.monotonic_s() + 99_999) == ()


def with_shards(tracker, part):
    known = tracker.nodes[part.key.public]
    names = {field.name for field in msgspec.structs.fields(known)}
    return msgspec.structs.replace(known, **({"shards": ("main",)} if "shards" in names else {}))


async def test_a_fingerprint_of_nothing_is_a_refusal_and_what_was_presented_is_published_short():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        garbage = pb.Fingerprint(model_artifact_digest="x" * 5000, recipe_id="\N{SNOWMAN}" * 200)
        async with stranger(lab_, right) as caller:
            error = await caller.refused(
                right,
                key=left.key,
                caller_boot_id=left.node.boot_id,
                hop=1,
                fingerprint=garbage,
            )
        assert error.code == pb.ERROR_CODE_FINGERPRINT_MISMATCH
        assert error.responder.boot_id == right.node.boot_id
        assert "x" * 50 not in error.detail
        (fact,) = right.said
        assert fact.presented.model_artifact_digest == "x" * 128
        assert fact.presented.recipe_id == "\N{SNOWMAN}" * 128
        assert fact.presented.runtime_recipe_digest == ""
        assert not fact.accepted


# -- who takes part, as the tracker knows ------------------------------------------------------------


@pytest.mark.parametrize("status", ["unknown", "suspended", "not-enrolled"])
async def test_only_a_node_that_is_heard_may_ask_for_attestations(status):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        lab_.tracker.knows(lab_.driver_key.public, lab_.driver_boot, status=status)
        failure = await refusal(lab_, part.hop())
        assert failure.code == pb.ERROR_CODE_UNKNOWN_PEER
        assert status in failure.detail


@pytest.mark.parametrize("purpose", [pb.SESSION_PURPOSE_SERVE, pb.SESSION_PURPOSE_CERTIFY])
@pytest.mark.parametrize("hop", [1, 5])
async def test_a_throw_away_key_is_nobodys_neighbour(hop, purpose):
    async with lab() as lab_:
        part = await lab_.start(3, LAYERS)
        lab_.tracker.certify_all()
        async with stranger(lab_, part) as caller:
            error = await caller.refused(
                part,
                key=EventKey(os.urandom(32)),
                hop=hop,
                purpose=purpose,
                fingerprint=pb.Fingerprint(recipe_id="to be refused"),
            )
        assert error.code == pb.ERROR_CODE_UNKNOWN_PEER
        assert said(part) == [[]]


async def test_a_user_needs_no_name_for_tokens_of_a_certified_recipe():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        lab_.tracker.certify_all()
        user = lab_.caller(key=EventKey(os.urandom(32)), boot_id=a_uuid())
        async with lab_.open(left.hop(), right.hop(), caller=user, purpose="serve") as route:
            assert len(await tokens_of(route, (1, 2), 2)) == 2


@pytest.mark.parametrize("status", ["dark", "revoked", "unknown"])
async def test_a_recipe_that_is_not_certified_serves_nobody(status):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        lab_.tracker.lists(part, recipe_status=status, reasons=(status,))
        failure = await refusal(lab_, part.hop(), purpose="serve")
        assert failure.code == pb.ERROR_CODE_NOT_CERTIFIED
        assert status in failure.detail


@pytest.mark.parametrize("reason", ["conflict", "withdrawn", "synthetic", "suspended"])
async def test_a_claim_that_may_not_certify_does_not(reason):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        lab_.tracker.lists(part, reasons=("dark", reason))
        failure = await refusal(lab_, part.hop())
        assert failure.code == pb.ERROR_CODE_UNAVAILABLE
        assert reason in failure.detail
        assert "dark" not in failure.detail.partition(": ")[2]


async def test_a_claim_that_no_tracker_lists_takes_no_session():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, listed=False)
        failure = await refusal(lab_, part.hop())
        assert failure.code == pb.ERROR_CODE_UNKNOWN_PEER


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (Unreachable("nobody answers"), pb.ERROR_CODE_UNAVAILABLE),
        (QueryRefused("behind", "still reading"), pb.ERROR_CODE_UNAVAILABLE),
        (QueryRefused(NOT_FOUND, "no such node"), pb.ERROR_CODE_UNKNOWN_PEER),
    ],
)
async def test_without_a_tracker_nothing_is_opened(trouble, code):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        lab_.tracker.silent = trouble
        failure = await refusal(lab_, part.hop())
        assert (failure.code, failure.retryable) == (code, True)
        await freed(part)


# -- a stray driver ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": a_uuid()},
        {"status": "withdrawn"},
        {"recipe_digest": "9" * 64},
        {"start": 4},
        {"end": 5},
        {"start": None, "end": None},
        {"reasons": ("dark", "conflict")},
    ],
)
async def test_a_hop_opens_the_next_only_where_its_tracker_lists_that_claim(change):
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        lab_.tracker.lists(right, **change)
        failure = await refusal(lab_, left.hop(), right.hop())
        assert (failure.code, failure.hop) == (pb.ERROR_CODE_HOP_LOST, 1)
        assert failure.detail.startswith("unknown-peer")
        assert said(left, right) == [[], []]
        await freed(left, right)


async def test_a_stray_driver_cannot_make_two_sound_nodes_refuse_each_other():
    """It names a node of another recipe as the next hop: two sound nodes that are no neighbours."""
    async with lab() as lab_:
        left = await lab_.start(0, 3)
        other = await lab_.start(3, LAYERS, recipe=OTHER_RECIPE)
        lab_.tracker.certify_all()
        for key in (lab_.driver_key, EventKey(os.urandom(32))):
            for purpose in ("certify", "serve"):
                if purpose == "certify" and key is not lab_.driver_key:
                    continue
                for recipe in (RECIPE, OTHER_RECIPE):
                    await refusal(
                        lab_,
                        left.hop(),
                        other.hop(),
                        caller=lab_.caller(key=key, recipe=recipe),
                        purpose=purpose,
                    )
        assert said(left, other) == [[], []]


async def test_a_hop_connects_nowhere_but_where_the_claim_says():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        visits = []

        async def visited(visitor):
            async with visitor:
                visits.append(visitor)

        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as third:
            port = third.extra(anyio.abc.SocketAttribute.local_port)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(third.serve, visited)
                elsewhere = f"grpc://127.0.0.1:{port}"
                # the claim's endpoint is gone by, whatever the driver says
                async with lab_.open(left.hop(), right.hop(endpoint=elsewhere)):
                    pass
                # and a hop that nobody lists is not asked at all
                await refusal(
                    lab_,
                    left.hop(),
                    right.hop(node=MALLORY.public, endpoint=elsewhere),
                )
                tasks.cancel_scope.cancel()
        assert visits == []


async def test_whoever_answers_in_anothers_place_is_found_out():
    """A node registered the endpoint of another one."""
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        third = await lab_.start(3, LAYERS)
        lab_.tracker.lists(right, endpoint=third.endpoint)
        failure = await refusal(lab_, left.hop(), right.hop())
        assert failure.hop == 1
        assert failure.detail.startswith("unknown-peer")
        assert f"{third.key.public} answers" in failure.detail
        assert said(left, right, third) == [[], [], []]


# -- epochs ------------------------------------------------------------------------------------------


async def test_an_older_epoch_is_refused_and_so_is_the_same_one_again():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        hops, session = (left.hop(), right.hop()), a_uuid()
        async with lab_.open(*hops, session=session, epoch=5):
            pass
        for epoch in (0, 4, 5):
            failure = await refusal(lab_, *hops, session=session, epoch=epoch)
            assert (failure.code, failure.hop) == (pb.ERROR_CODE_STALE_EPOCH, 0)
            assert not failure.retryable
        async with lab_.open(*hops, session=session, epoch=6):
            pass
        await freed(left, right)


async def test_a_newer_epoch_ends_what_runs_in_an_older_one():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        hops, session = (left.hop(), right.hop()), a_uuid()
        async with lab_.open(*hops, session=session, epoch=0) as older:
            await tokens_of(older, (1, 2), 1)
            async with lab_.open(*hops, session=session, epoch=1) as newer:
                await until(lambda: left.responder.sessions == right.responder.sessions == 1)
                assert len(await tokens_of(newer, (1, 2), 3)) == 3
            with pytest.raises(SessionFailed) as caught:
                await tokens_of(older, (3,), 1)
        assert caught.value.code == pb.ERROR_CODE_STALE_EPOCH
        await freed(left, right)


async def test_a_stranger_who_read_a_sessions_id_in_the_log_cannot_end_it(monkeypatch):
    monkeypatch.setattr("meshnet_node.session.epochs.GRACE_S", 0.2)
    async with lab() as lab_:
        parts = [await lab_.start(0, 3), await lab_.start(3, LAYERS)]
        lab_.tracker.knows(MALLORY.public, lab_.driver_boot)
        hops, session = [part.hop() for part in parts], str(uuid.uuid4())
        async with lab_.open(*hops, session=session, epoch=0) as route:
            mallory = lab_.caller(key=MALLORY)
            with pytest.raises(SessionFailed, match="another caller") as refused:
                async with lab_.open(*hops, session=session, epoch=9, caller=mallory):
                    pass
            assert refused.value.retryable
            assert len(await tokens_of(route, (1, 2, 3), 4)) == 4
        # once it is over, the id is anyone's
        async with lab_.open(*hops, session=session, epoch=9, caller=mallory):
            pass


async def test_a_node_gives_its_word_once_for_a_session_and_epoch_whichever_hop_it_is():
    """Two routes of one session and epoch would make it say two things, and look like a liar."""
    async with lab() as lab_:
        first, second = await lab_.start(0, 1), await lab_.start(1, 3)
        alone, last = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        session, now = a_uuid(), last.node.clock_ms()
        async with lab_.open(alone.hop(), last.hop(), session=session) as route:
            await tokens_of(route, (1, 2), 2)
            assert (await route.certify(completed_at_ms=now)).is_complete
        async with lab_.open(first.hop(), second.hop(), last.hop(), session=session) as route:
            await tokens_of(route, (3, 4), 2)
            again = await route.certify(completed_at_ms=now)
        assert [one.attested for one in again.attestations] == [True, True, False]
        assert "before" in again.attestations[2].detail
        assert len(last.said.of(ATTESTED)) == 1


# -- this side -----------------------------------------------------------------------------------------


async def test_a_node_that_is_full_says_so_and_takes_sessions_again():
    async with lab() as lab_:
        limits = msgspec.structs.replace(QUICK, sessions=2)
        part = await lab_.start(0, LAYERS, limits=limits)
        async with lab_.open(part.hop()), lab_.open(part.hop()):
            assert part.responder.load == 1000
            failure = await refusal(lab_, part.hop())
            assert (failure.code, failure.retryable) == (pb.ERROR_CODE_UNAVAILABLE, True)
        await freed(part)
        async with lab_.open(part.hop()):
            pass


async def test_a_node_that_stops_ends_what_runs_and_takes_nothing_new():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        async with lab_.open(left.hop(), right.hop()) as route:
            right.responder.stop_taking()
            await until(lambda: not right.responder.sessions)
            with pytest.raises(SessionFailed) as caught:
                await tokens_of(route, (1,), 1)
        assert (caught.value.code, caught.value.hop) == (pb.ERROR_CODE_HOP_LOST, 1)
        assert "stopping" in caught.value.detail
        failure = await refusal(lab_, left.hop(), right.hop())
        assert "stopping" in failure.detail
        await freed(left, right)


async def test_a_backend_that_fails_ends_its_session_only_and_certifies_nothing():
    async with lab() as lab_:
        left = await lab_.start(0, 3)
        right = await lab_.start(3, LAYERS, loaded=BrokenShard(3, LAYERS))
        with pytest.raises(SessionFailed) as caught:
            async with lab_.open(left.hop(), right.hop()) as route:
                await tokens_of(route, (1,), 1)
        assert (caught.value.code, caught.value.hop) == (pb.ERROR_CODE_HOP_LOST, 1)
        assert "internal: the backend failed: the device was lost" in caught.value.detail
        assert left.said.of(ATTESTED) == right.said.of(ATTESTED) == []
        await freed(left, right)


async def test_a_shard_without_a_tokenizer_takes_ids_and_no_text():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, loaded=NoTextShard(0, LAYERS))
        async with lab_.open(part.hop()) as route:
            assert len(await tokens_of(route, (1, 2), 2)) == 2
        with pytest.raises(SessionFailed) as caught:
            async with lab_.open(part.hop()) as route:
                await route.encode("hello")
        assert (caught.value.code, caught.value.retryable) == (pb.ERROR_CODE_UNAVAILABLE, False)
        assert "takes token ids alone" in caught.value.detail
        await freed(part)


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (OutboxFull("10,000 events wait"), pb.ERROR_CODE_UNAVAILABLE),
        (OSError("no space left on /secret/path"), pb.ERROR_CODE_INTERNAL),
    ],
)
async def test_a_result_that_cannot_be_kept_refuses_the_session_and_is_news_the_next_time(
    trouble, code
):
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        right.said.trouble = trouble
        failure = await refusal(lab_, left.hop(), right.hop())
        assert failure.detail.startswith(reason_of(code))
        assert "secret" not in failure.detail
        right.said.trouble = None
        async with lab_.open(left.hop(), right.hop()):
            pass
        assert len(right.said.of(SHOOK_HANDS)) == 1
        await freed(left, right)


async def test_whoever_is_silent_is_told_so_and_let_go():
    limits = Limits(open_timeout_s=0.2, idle_timeout_s=0.3, step_timeout_s=3, attest_timeout_s=3)
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=limits)
        async with stranger(lab_, part) as caller:
            with anyio.fail_after(2):
                error = await caller.last_word()
        assert (error.code, error.retryable) == (pb.ERROR_CODE_TIMED_OUT, True)
        assert "SessionOpen" in error.detail
        async with stranger(lab_, part) as caller:
            await caller.opened(part)
            with anyio.fail_after(2):
                error = await caller.last_word()
        assert error.code == pb.ERROR_CODE_TIMED_OUT
        assert "of the caller" in error.detail
        await freed(part)


async def test_a_key_is_asked_for_without_a_session():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        assert await ask_key(part.endpoint, None) == part.key.public
        await freed(part)
        with pytest.raises(SessionFailed):
            await ask_key("grpc://127.0.0.1:9", None, timeout_s=2)
        with pytest.raises(ValueError, match="not an endpoint"):
            await ask_key("http://127.0.0.1:9", None)


async def test_a_handshake_computes_nothing_and_ends_by_itself():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        request = Request("handshake", a_uuid(), 0, 0, right.hop())
        caller = lab_.caller(key=left.key, boot_id=left.node.boot_id)
        async with open_link(caller, request):
            await freed(right)
        assert [fact.accepted for fact in right.said.of(SHOOK_HANDS)] == [True]


def test_every_code_of_the_wire_has_its_cause_here():
    text = Path(__file__).read_text("utf-8")
    named = {code.name for code in pb.ErrorCode.DESCRIPTOR.values if f"pb.{code.name}" in text}
    assert {code.name for code in pb.ErrorCode.DESCRIPTOR.values} - named == {
        "ERROR_CODE_UNSPECIFIED"
    }


class OddShard(ToyShard):
    """A shard whose backend puts out what it should not."""

    def __init__(self, start, end, step):
        super().__init__(start, end)
        self.step = step

    def open(self, start, end, *, positions=None):
        slot = super().open(start, end, positions=positions)
        slot._compute = lambda *_: self.step
        return slot


@pytest.mark.parametrize(
    ("at", "step", "said"),
    [
        (0, Step(activations=b"short"), "gave 5 bytes, expected"),
        (0, Step(activations=memoryview(b"no bytes")), "gave a memoryview, expected"),
        (0, Step(token=1), "gave 0 bytes, expected"),
        (1, Step(), "gave nothing, expected a token"),
        (1, Step(token=1.5), "gave a float, expected a token"),
        (1, Step(token=-1), "gave -1, expected a token"),
        (1, Step(token=VOCABULARY), f"gave {VOCABULARY}, expected a token"),
        (1, None, "gave nothing, expected a Step"),
    ],
)
async def test_what_a_backend_should_not_put_out_is_its_own_hops_fault(at, step, said, caplog):
    async with lab() as lab_:
        bounds = ((0, 3), (3, LAYERS))
        odd = OddShard(*bounds[at], step)
        parts = [
            await lab_.start(*one, loaded=odd if index == at else None)
            for index, one in enumerate(bounds)
        ]
        with pytest.raises(SessionFailed) as caught:
            async with lab_.open(*(part.hop() for part in parts)) as route:
                await tokens_of(route, (3, 14), 1)
    assert (caught.value.hop or 0) == at
    assert "the backend failed" in caught.value.detail
    assert said in caught.value.detail
    assert f"hop {at}: failed: " in caplog.text, "which session it was is told"
