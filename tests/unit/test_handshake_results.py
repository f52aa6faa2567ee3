"""Results of handshakes: said once, tried again when refused, forgotten last of all by mistake."""

import itertools

import anyio
import msgspec
import pytest

from meshnet_events.keys import EventKey
from meshnet_events.session import Pair, SessionTerms
from meshnet_node import handshake
from meshnet_node.handshake import (
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    MAX_REMEMBERED,
    Refused,
    Results,
    result,
)
from meshnet_node.recipe_identity import (
    MISMATCH_ARTIFACT,
    RouteMismatch,
    ShardIdentity,
    check_handshake,
)
from meshnet_node.session.epochs import Epochs
from meshnet_node.session.failure import SessionFailed
from meshnet_proto import shard_runtime_pb2 as pb
from session_kit import ARTIFACT, RECIPE

OURS, THEIRS = EventKey(bytes(32)), EventKey(bytes([1] * 32))
BOOTS = Pair(f"{1:08x}-0000-4000-8000-000000000000", f"{2:08x}-0000-4000-8000-000000000000")
SHARD = ShardIdentity(ARTIFACT, RECIPE, 0, 3)
OTHER = msgspec.structs.replace(RECIPE, kv_dtype="float32")
TERMS = SessionTerms(
    boots=BOOTS,
    keys=Pair(OURS.public, THEIRS.public),
    nonces=Pair("", ""),
    realm="lab",
    route_epoch=3,
    route_session_id="one",
)


def a_fact(*, recipe=RECIPE, role="initiator", ours=SHARD, **terms):
    """A result; another recipe of the peer is a refusal."""
    presented = ShardIdentity(ARTIFACT, recipe, 3, 6).fingerprint.to_proto()
    terms = msgspec.structs.replace(TERMS, **terms)
    return result(terms, role, ours.fingerprint, presented, check_handshake(ours, presented))


def test_each_side_names_the_other_and_what_it_presented():
    initiator, responder = a_fact(), a_fact(role="responder", recipe=OTHER)
    assert (initiator.boot_id, initiator.peer, initiator.peer_boot_id) == (
        BOOTS.caller,
        THEIRS.public,
        BOOTS.responder,
    )
    assert (responder.boot_id, responder.peer, responder.peer_boot_id) == (
        BOOTS.responder,
        OURS.public,
        BOOTS.caller,
    )
    assert (initiator.accepted, initiator.mismatches) == (True, ())
    assert (responder.accepted, len(responder.mismatches)) == (False, 1)
    assert (initiator.route_session_id, initiator.route_epoch) == ("one", 3)
    assert responder.presented.runtime_recipe_digest != responder.local.runtime_recipe_digest


def test_what_a_peer_presents_is_cut_and_so_is_what_is_said_of_it():
    presented = pb.Fingerprint(**dict.fromkeys(pb.Fingerprint.DESCRIPTOR.fields_by_name, "é" * 999))
    mismatch = RouteMismatch(MISMATCH_ARTIFACT, "d" * 5000)
    fact = result(TERMS, "initiator", SHARD.fingerprint, presented, [mismatch])
    assert set(msgspec.structs.asdict(fact.presented).values()) == {"é" * 128}
    assert fact.mismatches[0].detail == "d" * 1024


def test_the_same_result_is_news_once_whichever_session_it_came_of():
    results = Results()
    assert results.take(a_fact(), "main", now_s=0)
    assert not results.take(a_fact(route_session_id="two", route_epoch=9), "main", now_s=1)
    assert not results.take(a_fact(role="initiator"), "main", now_s=2)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": OTHER},
        {"boots": Pair(BOOTS.caller, BOOTS.caller)},
        {"boots": Pair(BOOTS.responder, BOOTS.responder)},
        {"keys": Pair(OURS.public, OURS.public)},
        {"ours": ShardIdentity(ARTIFACT, OTHER, 0, 3)},
    ],
)
def test_another_verdict_peer_boot_or_fingerprint_is_news(change):
    results = Results()
    assert results.take(a_fact(), "main", now_s=0)
    assert results.take(a_fact(**change), "main", now_s=0)


def test_a_verdict_that_came_back_is_news_again():
    results = Results()
    verdicts = [RECIPE, OTHER, OTHER, RECIPE, RECIPE, OTHER]
    said = [results.take(a_fact(recipe=recipe), "main", now_s=0) for recipe in verdicts]
    assert said == [True, True, False, True, False, True]


def test_other_garbage_of_the_same_kind_is_no_news():
    results, said = Results(), 0
    for number in range(50):
        presented = pb.Fingerprint(model_artifact_digest=f"garbage {number}")
        fact = result(
            TERMS, "responder", SHARD.fingerprint, presented, check_handshake(SHARD, presented)
        )
        said += results.take(fact, "main", now_s=0)
    assert said == 1


def test_only_a_refusal_is_tried_again_after_a_minute():
    results = Results()
    results.take(a_fact(), "main", now_s=0)
    results.take(a_fact(recipe=OTHER, keys=Pair(OURS.public, OURS.public)), "left", now_s=100)
    assert results.due(now_s=100 + FIRST_RETRY_S - 1) == ()
    (refused,) = results.due(now_s=100 + FIRST_RETRY_S)
    assert isinstance(refused, Refused)
    assert (refused.shard_id, refused.peer.node) == ("left", OURS.public)
    assert refused.peer.boot_id == BOOTS.responder
    assert results.due(now_s=100 + FIRST_RETRY_S) == ()


def test_what_keeps_being_refused_is_tried_ever_later_up_to_an_hour():
    results, now, waits = Results(), 0.0, []
    results.take(a_fact(recipe=OTHER), "main", now_s=now)
    for _ in range(12):
        began = now
        while not results.due(now_s=now):
            now += 1
        waits.append(now - began)
        # the try failed again, or nobody answered it: either way it is later next time
        if len(waits) % 2:
            results.take(a_fact(recipe=OTHER), "main", now_s=now)
    assert waits[0] == FIRST_RETRY_S
    assert all(left <= right for left, right in itertools.pairwise(waits))
    assert waits[-1] == waits[-2] == LONGEST_RETRY_S


def test_a_pair_that_accepts_again_is_not_tried_any_more_and_starts_anew_when_it_refuses():
    results = Results()
    for now in (0, 100, 200):
        results.take(a_fact(recipe=OTHER), "main", now_s=now)
    assert results.take(a_fact(), "main", now_s=300)
    assert results.due(now_s=10**9) == ()
    assert results.take(a_fact(recipe=OTHER), "main", now_s=400)
    assert len(results.due(now_s=400 + FIRST_RETRY_S)) == 1


def test_a_result_that_could_not_be_published_is_news_the_next_time():
    results, fact = Results(), a_fact()
    assert results.take(fact, "main", now_s=0)
    results.forget(fact)
    assert results.take(a_fact(), "main", now_s=0)
    results.forget(a_fact())  # another one, never taken
    assert not results.take(a_fact(), "main", now_s=0)


def test_a_result_met_again_while_it_was_being_published_is_forgotten_all_the_same():
    """Two sessions meet the same peer, and the one that was to publish it cannot."""
    results, first = Results(), a_fact(route_session_id="first")
    assert results.take(first, "main", now_s=0)
    assert not results.take(a_fact(route_session_id="second"), "main", now_s=0)
    results.forget(first)
    assert results.take(a_fact(route_session_id="third"), "main", now_s=0)


def test_only_so_many_results_are_kept_and_the_oldest_goes_first(monkeypatch):
    assert MAX_REMEMBERED >= 1_000
    monkeypatch.setattr(handshake, "MAX_REMEMBERED", 3)
    results = Results()
    facts = [a_fact(boots=Pair(BOOTS.caller, f"{i:08x}" + BOOTS.caller[8:])) for i in range(5)]
    assert all(results.take(fact, "main", now_s=0) for fact in facts[:3])
    assert not results.take(facts[0], "main", now_s=0)  # it is the newest now
    assert results.take(facts[3], "main", now_s=0)
    assert not results.take(facts[0], "main", now_s=0)
    assert results.take(facts[1], "main", now_s=0)
    assert len(results._newest) == 3


# -- epochs ------------------------------------------------------------------------------------------


async def test_an_epoch_is_entered_once_by_each_hop_and_never_after_a_newer_one():
    epochs = Epochs()
    first, second = await epochs.enter("s", 1, 0, "d"), await epochs.enter("s", 1, 1, "d")
    for epoch, hop in ((1, 0), (1, 1), (0, 0), (0, 7)):
        with pytest.raises(SessionFailed, match="stale-epoch"):
            await epochs.enter("s", epoch, hop, "d")
    assert not first.superseded.is_set()
    newer = await epochs.enter("s", 2, 0, "d")
    assert first.superseded.is_set()
    assert second.superseded.is_set()
    assert not newer.superseded.is_set()
    assert not (await epochs.enter("t", 0, 0, "d")).superseded.is_set()


async def test_another_caller_ends_nothing_and_waits_for_what_runs_only_a_moment(monkeypatch):
    monkeypatch.setattr("meshnet_node.session.epochs.GRACE_S", 0.05)
    epochs = Epochs()
    running = await epochs.enter("s", 1, 0, "driver")
    with pytest.raises(SessionFailed, match="another caller") as refused:
        await epochs.enter("s", 2, 0, "stranger")
    assert refused.value.retryable
    assert not running.superseded.is_set()
    epochs.leave("s", running)
    assert not (await epochs.enter("s", 2, 0, "stranger")).superseded.is_set()


async def test_what_ends_in_that_moment_lets_another_caller_in():
    epochs = Epochs()
    running = await epochs.enter("s", 1, 3, "the hop before")
    async with anyio.create_task_group() as tasks:

        async def end():
            await anyio.sleep(0.05)
            epochs.leave("s", running)

        tasks.start_soon(end)
        place = await epochs.enter("s", 2, 4, "another hop before")
    assert not place.superseded.is_set()


async def test_sessions_of_long_ago_are_forgotten_and_given_words_are_not(monkeypatch):
    monkeypatch.setattr(Epochs, "MAX_REMEMBERED", 3)
    epochs = Epochs()
    assert epochs.attest_once("s0", 0)
    for i in range(5):
        await epochs.enter(f"s{i}", 0, 0, "d")
    assert list(epochs._known) == ["s2", "s3", "s4"]
    await epochs.enter("s0", 0, 0, "d")
    assert not epochs.attest_once("s0", 0)
    assert epochs.attest_once("s0", 1)
