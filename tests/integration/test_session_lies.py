"""Whoever lies about a forward gets no attestation from those who saw something else."""

import itertools
import struct

import anyio
import msgspec
import pytest

from meshnet_bus.outbox_file import OutboxFull
from meshnet_events.envelope import canonical
from meshnet_node.session.driver import Inconsistent
from meshnet_node.session.failure import MAX_DETAIL, SessionFailed
from meshnet_proto import shard_runtime_pb2 as pb
from session_kit import (
    ATTESTED,
    LAYERS,
    QUICK,
    ToyShard,
    freed,
    lab,
    lying,
    stranger,
    tokens_of,
    whole_model,
)

PROMPT = (3, 14, 15, 92)
CUTS = ((0, 2), (2, 4), (4, LAYERS))
OTHER_DIGEST = "e" * 64


async def three(lab_, **last):
    return [
        await lab_.start(0, 2),
        await lab_.start(2, 4),
        await lab_.start(4, LAYERS, **last),
    ]


async def asked(lab_, parts, change, *, tokens=4):
    """A driver that computes soundly and then tells something else; who attested that."""
    async with lab_.open(*(part.hop() for part in parts)) as route:
        await tokens_of(route, PROMPT, tokens)
        evidence = route.evidence(await route.finish(), completed_at_ms=parts[0].node.clock_ms())
        done = await route.ask_to_attest(change(evidence))
    await freed(*parts)
    attested = [one.attested for one in done.attestations]
    assert attested == [len(part.said.of(ATTESTED)) == 1 for part in parts]
    assert all(bool(one.detail) is not one.attested for one in done.attestations)
    return attested, done


def replaced(**changes):
    return lambda evidence: msgspec.structs.replace(evidence, **changes)


def with_hop(index, **changes):
    def change(evidence):
        hops = list(evidence.hops)
        hops[index] = msgspec.structs.replace(hops[index], **changes)
        return msgspec.structs.replace(evidence, hops=tuple(hops))

    return change


def with_seam(index):
    def change(evidence):
        seams = list(evidence.seams)
        seams[index] = OTHER_DIGEST
        return msgspec.structs.replace(evidence, seams=tuple(seams))

    return change


ALL, NOBODY = [True] * 3, [False] * 3
BOOT = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("change", "attested"),
    [
        # each refuses what it saw otherwise; what nobody of them could see is not theirs to refuse
        (replaced(), ALL),
        (with_seam(0), [False, False, True]),
        (with_seam(1), [True, False, False]),
        (replaced(input_digest=OTHER_DIGEST), [False, True, True]),
        (replaced(output_digest=OTHER_DIGEST), NOBODY),
        (replaced(tokens_generated=5), NOBODY),
        (replaced(tokens_generated=0), NOBODY),
        (replaced(layer_count=7), NOBODY),
        (replaced(route_epoch=1), NOBODY),
        (replaced(route_session_id="another"), NOBODY),
        (replaced(model_artifact_digest=OTHER_DIGEST), NOBODY),
        (replaced(runtime_recipe_digest=OTHER_DIGEST), NOBODY),
        (replaced(synthetic=True), NOBODY),
        (replaced(seams=()), NOBODY),
        (with_hop(0, boot_id=BOOT), [False, False, True]),
        (with_hop(0, shard_id="other"), [False, True, True]),
        (with_hop(1, boot_id=BOOT), [False, False, False]),
        (with_hop(2, shard_id="other"), NOBODY),
        (with_hop(2, end=7), NOBODY),
        (with_hop(0, start=1), NOBODY),
        (lambda e: msgspec.structs.replace(e, hops=e.hops[::-1]), NOBODY),
        (lambda e: msgspec.structs.replace(e, hops=e.hops[:2], seams=e.seams[:1]), NOBODY),
        (lambda e: msgspec.structs.replace(e, completed_at_ms=e.completed_at_ms - 61_000), NOBODY),
        (lambda e: msgspec.structs.replace(e, completed_at_ms=e.completed_at_ms + 62_000), NOBODY),
    ],
)
async def test_a_driver_that_tells_something_else_is_refused_by_whoever_saw_it(change, attested):
    async with lab() as lab_:
        found, _ = await asked(lab_, await three(lab_), change)
        assert found == attested


async def test_a_driver_cannot_put_another_node_in_a_neighbours_place():
    async with lab() as lab_:
        parts = await three(lab_)
        found, _ = await asked(lab_, parts, with_hop(0, node=lab_.driver_key.public))
        assert found == [False, False, True]


async def test_nothing_is_attested_of_a_forward_that_gave_no_tokens():
    async with lab() as lab_:
        parts = await three(lab_)
        async with lab_.open(*(part.hop() for part in parts)) as route:
            evidence = route.evidence(
                await route.finish(), completed_at_ms=parts[0].node.clock_ms()
            )
            done = await route.ask_to_attest(evidence)
        assert [one.attested for one in done.attestations] == NOBODY
        assert "no-tokens" in done.attestations[0].detail


async def test_one_node_alone_certifies_nothing():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        found, done = await asked(lab_, [part], replaced())
        assert found == [False]
        assert "too-few-nodes" in done.attestations[0].detail


async def test_a_node_that_is_two_hops_certifies_nothing():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS)
        ends = (part.hop(0, 3), part.hop(3, LAYERS))
        async with lab_.open(*ends) as route:
            assert await tokens_of(route, PROMPT, 3) == whole_model(PROMPT, 3)
            done = await route.certify(completed_at_ms=part.node.clock_ms())
        assert [one.attested for one in done.attestations] == [False, False]
        assert part.said.of(ATTESTED) == []
        await freed(part)


async def test_a_backend_that_computes_no_model_certifies_nothing_whatever_the_driver_says():
    async with lab() as lab_:
        parts = await three(lab_, synthetic=True)
        found, _ = await asked(lab_, parts, replaced())
        assert found == NOBODY
        for part in parts:
            part.said.clear()
        found, done = await asked(lab_, parts, replaced(synthetic=False))
        assert found == [True, True, False]
        assert "synthetic" in done.attestations[2].detail


async def test_a_session_that_serves_is_not_attested():
    async with lab() as lab_:
        parts = await three(lab_)
        lab_.tracker.certify_all()
        async with lab_.open(*(part.hop() for part in parts), purpose="serve") as route:
            await tokens_of(route, PROMPT, 2)
            done = await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert [one.attested for one in done.attestations] == NOBODY
        assert [part.said.of(ATTESTED) for part in parts] == [[], [], []]


# -- hops that lie -----------------------------------------------------------------------------------


def of_kind(kind, change):
    """Change the frames of one kind."""

    def lie(frame):
        if frame.WhichOneof("frame") == kind:
            change(getattr(frame, kind))
        return frame

    return lie


def report_of(hop, **changes):
    def change(reports):
        for report in reports.reports:
            if report.hop == hop:
                for name, value in changes.items():
                    setattr(report, name, value)

    return of_kind("reports", change)


@pytest.mark.parametrize("liar", [0, 1, 2])
@pytest.mark.parametrize(
    "lie",
    [{"in_digest": OTHER_DIGEST}, {"out_digest": OTHER_DIGEST}, {"tokens_generated": 9}],
)
async def test_a_report_that_does_not_fit_its_neighbours_makes_no_evidence(liar, lie):
    async with lab() as lab_:
        parts = await three(lab_)
        with lying(parts[liar], up=report_of(liar, **lie)):
            async with lab_.open(*(part.hop() for part in parts)) as route:
                await tokens_of(route, PROMPT, 3)
                with pytest.raises(Inconsistent, match=rf"hop {liar}|hop {liar + 1}"):
                    await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert [part.said.of(ATTESTED) for part in parts] == [[], [], []]
        await freed(*parts)


async def test_a_hop_that_sends_other_activations_than_it_reports_is_found_out():
    def bent(activations):
        numbers = list(struct.unpack(f"<{len(activations.data) // 4}f", activations.data))
        numbers[0] += 0.5
        activations.data = struct.pack(f"<{len(numbers)}f", *numbers)

    async with lab() as lab_:
        parts = await three(lab_)
        hops = [part.hop() for part in parts]
        with lying(parts[0], down=of_kind("activations", bent)):
            async with lab_.open(*hops) as route:
                await tokens_of(route, PROMPT, 3)
                with pytest.raises(
                    Inconsistent, match="hop 1 reports other activations than hop 0"
                ):
                    await route.certify(completed_at_ms=parts[0].node.clock_ms())

        # even if it also speaks for its neighbour, that one does not attest what it did not see
        def cover_up(reports):
            for left, right in itertools.pairwise(reports.reports):
                right.in_digest = left.out_digest

        def both(frame):
            return of_kind("reports", cover_up)(frame)

        with lying(parts[0], down=of_kind("activations", bent), up=both):
            async with lab_.open(*hops) as route:
                await tokens_of(route, PROMPT, 3)
                done = await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert [one.attested for one in done.attestations] == [True, False, True]
        assert "what entered this hop" in done.attestations[1].detail
        assert parts[1].said.of(ATTESTED) == []


@pytest.mark.parametrize("liar", [0, 1])
async def test_a_hop_that_passes_on_another_token_than_it_was_given_is_found_out(liar):
    def other(tokens):
        if len(tokens.ids) == 1:
            tokens.ids[0] = (tokens.ids[0] + 1) % 97

    async with lab() as lab_:
        parts = await three(lab_)
        with lying(parts[liar], up=of_kind("tokens", other)):
            async with lab_.open(*(part.hop() for part in parts)) as route:
                await tokens_of(route, PROMPT, 3)
                with pytest.raises(Inconsistent, match="other tokens than came back"):
                    await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert [part.said.of(ATTESTED) for part in parts] == [[], [], []]


@pytest.mark.parametrize("kind", ["reports", "attestations"])
@pytest.mark.parametrize("hops", [[1], [1, 2, 3], [2, 1], [0, 1], []])
async def test_a_hop_that_speaks_for_others_ends_the_session(kind, hops):
    def speak(frame):
        told = getattr(frame, kind)
        member = pb.HopReport if kind == "reports" else pb.Attestation
        del told[:]
        told.extend(member(hop=hop) for hop in hops)

    async with lab() as lab_:
        parts = await three(lab_)
        with lying(parts[1], up=of_kind(kind, speak)):
            async with lab_.open(*(part.hop() for part in parts)) as route:
                await tokens_of(route, PROMPT, 2)
                with pytest.raises(SessionFailed) as caught:
                    await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert caught.value.hop == 1
        assert "speaks for other hops" in caught.value.detail
        await freed(*parts)


@pytest.mark.parametrize(
    "lie",
    [
        {"ids": [97]},
        {"ids": [2**32 - 1]},
        {"ids": []},
        {"ids": [1, 2]},
    ],
)
async def test_a_token_that_is_none_ends_the_session_and_names_who_sent_it(lie):
    def other(tokens):
        del tokens.ids[:]
        tokens.ids.extend(lie["ids"])

    async with lab() as lab_:
        parts = await three(lab_)
        with lying(parts[1], up=of_kind("tokens", other)):
            async with lab_.open(*(part.hop() for part in parts)) as route:
                with pytest.raises(SessionFailed) as caught:
                    await tokens_of(route, PROMPT, 1)
        assert caught.value.hop == 1
        assert "a token that is none" in caught.value.detail
        await freed(*parts)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"position": 7}, "position 7, expected 0"),
        ({"count": 3}, "bytes for 3 positions"),
        ({"count": 0}, "0 positions in a frame"),
        ({"count": 2**32 - 1}, "4294967295 positions"),
        ({"data": b""}, "0 bytes for 4 positions"),
        ({"data": b"x" * 100_000}, "100000 bytes for 4 positions"),
    ],
)
async def test_activations_that_are_not_of_their_form_are_refused(lie, why):
    def bend(activations):
        for name, value in lie.items():
            setattr(activations, name, value)

    async with lab() as lab_:
        parts = await three(lab_)
        with lying(parts[0], down=of_kind("activations", bend)):
            async with lab_.open(*(part.hop() for part in parts)) as route:
                with pytest.raises(SessionFailed) as caught:
                    await tokens_of(route, PROMPT, 1)
        assert caught.value.detail.startswith("protocol-violation")
        assert why in caught.value.detail
        await freed(*parts)


async def test_what_a_hop_says_of_a_failure_is_short_and_on_one_line():
    def shout(frame):
        error = pb.ShardError(code=99, detail="\x1b[31m\nfake log line\n" + "x" * 5000)
        return pb.ResponderFrame(error=error) if frame.HasField("tokens") else frame

    async with lab() as lab_:
        parts = await three(lab_)
        with lying(parts[1], up=shout):
            async with lab_.open(*(part.hop() for part in parts)) as route:
                with pytest.raises(SessionFailed) as caught:
                    await tokens_of(route, PROMPT, 1)
        assert str(caught.value).isprintable()
        assert len(caught.value.detail) <= MAX_DETAIL
        assert "unspecified" in caught.value.detail


# -- the word itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b"\xff" * 100,
        b'{"\\ud800":1}',
        b'{"\\u001b[31m\\nforged":1}',
        b"x" * 60_001,
    ],
)
async def test_evidence_that_is_none_is_declined_by_everyone(content):
    async with lab() as lab_:
        parts = await three(lab_)
        async with lab_.open(*(part.hop() for part in parts)) as route:
            await tokens_of(route, PROMPT, 1)
            await route.finish()
            await route._send(pb.CallerFrame(evidence=pb.Evidence(evidence=content)))
            said = (await route._receive("attestations", 5)).attestations.attestations
        assert [(one.hop, one.attested) for one in said] == [(0, False), (1, False), (2, False)]
        assert all(one.detail.isprintable() and len(one.detail) <= MAX_DETAIL for one in said)
        await freed(*parts)


async def test_evidence_in_another_spelling_is_declined():
    async with lab() as lab_:
        parts = await three(lab_)
        async with lab_.open(*(part.hop() for part in parts)) as route:
            await tokens_of(route, PROMPT, 1)
            evidence = route.evidence(
                await route.finish(), completed_at_ms=parts[0].node.clock_ms()
            )
            spaced = canonical(evidence).replace(b'"hops":', b'"hops": ')
            await route._send(pb.CallerFrame(evidence=pb.Evidence(evidence=spaced)))
            said = (await route._receive("attestations", 5)).attestations.attestations
        assert [one.detail for one in said] == ["evidence that is not in canonical form"] * 3


async def test_evidence_is_taken_once_in_a_session():
    async with lab() as lab_:
        parts = await three(lab_)
        async with lab_.open(*(part.hop() for part in parts)) as route:
            await tokens_of(route, PROMPT, 1)
            done = await route.certify(completed_at_ms=parts[0].node.clock_ms())
            assert done.is_complete
            with pytest.raises(SessionFailed):
                await route.ask_to_attest(done.evidence)
        assert [len(part.said.of(ATTESTED)) for part in parts] == [1, 1, 1]


async def test_an_attestation_that_is_not_stored_yet_counts_and_says_so():
    async with lab() as lab_:
        limits = msgspec.structs.replace(QUICK, attest_timeout_s=0.4)
        parts = [await lab_.start(a, b, limits=limits) for a, b in CUTS]
        parts[1].said.never_stored = True
        with anyio.fail_after(3):
            found, done = await asked(lab_, parts, replaced())
        assert found == ALL
        assert [one.sequence > 0 for one in done.attestations] == [True, False, True]


async def test_a_word_that_cannot_be_kept_is_not_given():
    async with lab() as lab_:
        parts = await three(lab_)
        async with lab_.open(*(part.hop() for part in parts)) as route:
            await tokens_of(route, PROMPT, 1)
            parts[1].said.trouble = OutboxFull("10,000 events wait")
            done = await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert [one.attested for one in done.attestations] == [True, False, True]
        assert "10,000 events wait" in done.attestations[1].detail


async def test_a_stranger_cannot_ask_a_later_hop_to_attest():
    async with lab() as lab_:
        part = await lab_.start(3, LAYERS, loaded=ToyShard(3, LAYERS))
        async with stranger(lab_, part) as caller:
            error = await caller.refused(part, hop=0)
        assert error.code == pb.ERROR_CODE_RANGE_MISMATCH
        assert list(part.said) == []
