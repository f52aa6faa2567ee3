"""Distributed forwards over real gRPC: the same tokens as the whole model, and evidence of it."""

import itertools

import pytest

from meshnet_events.envelope import canonical
from session_kit import (
    ATTESTED,
    LAYERS,
    SHOOK_HANDS,
    freed,
    lab,
    tokens_of,
    u32_digest,
    whole_model,
)

PROMPT = (3, 14, 15, 92, 65)


@pytest.mark.parametrize("cuts", [(3,), (2, 4), (1, 2, 3, 5)])
async def test_a_route_of_shards_says_what_the_whole_model_says(cuts):
    bounds = (0, *cuts, LAYERS)
    async with lab() as lab_:
        parts = [await lab_.start(a, b) for a, b in itertools.pairwise(bounds)]
        async with lab_.open(*(part.hop() for part in parts)) as route:
            assert await tokens_of(route, PROMPT, 8) == whole_model(PROMPT, 8)


async def test_every_participant_attests_the_same_evidence(caplog):
    async with lab() as lab_:
        parts = [await lab_.start(0, 2), await lab_.start(2, 4), await lab_.start(4, LAYERS)]
        async with lab_.open(*(part.hop() for part in parts)) as route:
            out = await tokens_of(route, PROMPT, 6)
            done = await route.certify(completed_at_ms=parts[0].node.clock_ms())
    assert done.is_complete
    assert caplog.text == "", "there is nothing to warn of"
    assert [one.sequence > 0 for one in done.attestations] == [True] * 3
    said = [part.said.of(ATTESTED) for part in parts]
    assert [len(words) for words in said] == [1, 1, 1]
    assert {canonical(words[0].evidence) for words in said} == {canonical(done.evidence)}
    assert [words[0].hop for words in said] == [0, 1, 2]
    evidence = done.evidence
    assert evidence.input_digest == u32_digest((*PROMPT, *out[:-1]))
    assert evidence.output_digest == u32_digest(out)
    assert evidence.tokens_generated == 6
    chain = (evidence.input_digest, *evidence.seams, evidence.output_digest)
    assert [(w[0].in_digest, w[0].out_digest) for w in said] == list(itertools.pairwise(chain))


async def test_neighbours_publish_their_handshake_and_nobody_one_with_the_driver():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        async with lab_.open(left.hop(), right.hop()):
            pass
    (by_left,), (by_right,) = left.said.of(SHOOK_HANDS), right.said.of(SHOOK_HANDS)
    assert by_left.accepted
    assert by_right.accepted
    assert (by_left.role, by_left.peer, by_left.peer_boot_id) == (
        "initiator",
        right.key.public,
        right.node.boot_id,
    )
    assert (by_right.role, by_right.peer, by_right.peer_boot_id) == (
        "responder",
        left.key.public,
        left.node.boot_id,
    )


async def test_the_same_result_is_published_once():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        for _ in range(3):
            async with lab_.open(left.hop(), right.hop()):
                pass
    assert [len(part.said.of(SHOOK_HANDS)) for part in (left, right)] == [1, 1]


async def test_an_overlap_is_computed_once():
    async with lab() as lab_:
        left, right = await lab_.start(0, 4), await lab_.start(2, LAYERS)
        async with lab_.open(left.hop(), right.hop(start=4)) as route:
            assert await tokens_of(route, PROMPT, 8) == whole_model(PROMPT, 8)
            done = await route.certify(completed_at_ms=left.node.clock_ms())
    assert done.is_complete
    assert [(hop.start, hop.end) for hop in done.evidence.hops] == [(0, 4), (4, LAYERS)]


async def test_text_goes_in_and_comes_out_without_a_tokenizer_at_the_driver():
    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        async with lab_.open(left.hop(), right.hop()) as route:
            ids = await route.encode("hello")
            tokens = [token async for token in route.generate(ids, max_tokens=3)]
    assert ids == tuple(byte % 97 for byte in b"hello")
    assert b"".join(token.text for token in tokens).split() == [
        b"%d" % token.id for token in tokens
    ]


async def test_a_prompt_longer_than_a_frame_goes_in_pieces():
    ids = tuple(at % 90 for at in range(200))
    async with lab() as lab_:
        parts = [await lab_.start(0, 3), await lab_.start(3, LAYERS)]
        for part in parts:
            part.shard.positions_per_frame = lambda most: 7
        async with lab_.open(*(part.hop() for part in parts)) as route:
            assert await tokens_of(route, ids, 4) == whole_model(ids, 4)


async def test_everything_is_freed_when_a_route_is_closed():
    async with lab() as lab_:
        parts = [await lab_.start(0, 3), await lab_.start(3, LAYERS)]
        async with lab_.open(*(part.hop() for part in parts)) as route:
            await tokens_of(route, PROMPT, 2)
            assert [part.responder.sessions for part in parts] == [1, 1]
        await freed(*parts)
