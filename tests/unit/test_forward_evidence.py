"""Evidence of a forward: what fits together, and that each lie in it is seen by somebody."""

import hashlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_events.envelope import GENESIS, MAX_BODY, ChainHead, canonical, sign_event
from meshnet_events.facts import Evidence, Hop
from meshnet_events.keys import EventKey
from meshnet_node.forward import (
    MAX_EVIDENCE,
    Digests,
    Part,
    Report,
    attestation,
    disagreements,
    make_evidence,
    read_evidence,
    token_bytes,
)

NOW_MS, SKEW_MS = 1_900_000_000_000, 60_000
CUTS = (0, 2, 5, 6)
KEYS = [EventKey(bytes([at] * 32)) for at in range(4)]
HOPS = tuple(
    Hop(
        boot_id=f"{at:08x}-0000-4000-8000-000000000000",
        end=CUTS[at + 1],
        node=KEYS[at].public,
        shard_id=f"shard-{at}",
        start=CUTS[at],
    )
    for at in range(3)
)
PROMPT, OUT = (3, 1, 4), (15, 92, 65)


def watched():
    """What three hops and a driver digest of one forward."""
    driver, hops = Digests(), [Digests() for _ in HOPS]
    driver.entered(token_bytes((*PROMPT, *OUT[:-1])))
    hops[0].entered(token_bytes(PROMPT))
    hops[0].entered(token_bytes(OUT[:-1]))
    for left, right in ((0, 1), (1, 2)):
        hops[left].left(b"seam %d, " % left)
        hops[left].left(b"and more")
        hops[right].entered(b"seam %d, and more" % left)
    for token in OUT:
        for one in (driver, *hops):
            one.generated(token)
    return driver, hops


DRIVER, SEEN_BY = watched()
SEEN = [one.seen(is_last=at == 2) for at, one in enumerate(SEEN_BY)]
REPORTS = [
    Report(
        in_digest=seen.in_digest,
        out_digest=seen.out_digest,
        tokens_generated=seen.tokens_generated,
        synthetic=False,
    )
    for seen in SEEN
]
PARTS = [
    Part(
        route_session_id="session",
        route_epoch=4,
        model_artifact_digest="a" * 64,
        runtime_recipe_digest="b" * 64,
        layer_count=6,
        synthetic=False,
        index=at,
        before=(HOPS[at - 1].node, HOPS[at - 1].boot_id) if at else None,
        hops=HOPS[at:],
        seen=SEEN[at],
    )
    for at in range(3)
]


def made(**changes):
    return make_evidence(
        **{
            "route_session_id": "session",
            "route_epoch": 4,
            "model_artifact_digest": "a" * 64,
            "runtime_recipe_digest": "b" * 64,
            "layer_count": 6,
            "hops": HOPS,
            "reports": REPORTS,
            "driver": DRIVER.seen(is_last=False),
            "completed_at_ms": NOW_MS,
        }
        | changes
    )


EVIDENCE = made()


def against(evidence, part):
    return disagreements(part, evidence, now_ms=NOW_MS, max_skew_ms=SKEW_MS)


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_digests_are_those_that_the_contract_says():
    assert EVIDENCE.input_digest == sha(struct.pack("<5I", 3, 1, 4, 15, 92))
    assert EVIDENCE.output_digest == sha(struct.pack("<3I", 15, 92, 65))
    assert EVIDENCE.seams == (sha(b"seam 0, and more"), sha(b"seam 1, and more"))
    assert token_bytes((1, 2**32 - 1)) == b"\1\0\0\0\xff\xff\xff\xff"
    assert (EVIDENCE.tokens_generated, EVIDENCE.synthetic) == (3, False)


def test_every_participant_attests_it_with_its_own_two_digests():
    chain = (EVIDENCE.input_digest, *EVIDENCE.seams, EVIDENCE.output_digest)
    for at, part in enumerate(PARTS):
        assert against(EVIDENCE, part) == ()
        word = attestation(part, EVIDENCE)
        assert (word.hop, word.in_digest, word.out_digest) == (at, chain[at], chain[at + 1])
        assert word.evidence is EVIDENCE


# -- what a driver writes ----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize(
    "change", [{"in_digest": "c" * 64}, {"out_digest": "c" * 64}, {"tokens_generated": 4}]
)
def test_reports_that_do_not_fit_together_make_none_and_the_fault_names_the_hop(index, change):
    reports = list(REPORTS)
    reports[index] = msgspec.structs.replace(reports[index], **change)
    with pytest.raises(ValueError, match=rf"hop {index}|hop {index + 1}"):
        made(reports=reports)


def test_reports_of_other_hops_make_none():
    with pytest.raises(ValueError, match="2 hops reported, expected 3"):
        made(reports=REPORTS[:2])


def test_every_fault_of_the_reports_is_told_at_once():
    wrong = Report(in_digest="c" * 64, out_digest="d" * 64, tokens_generated=9, synthetic=False)
    with pytest.raises(ValueError, match="hop 0") as caught:
        made(reports=[wrong] * 3)
    assert str(caught.value).count(";") == 6


def test_one_synthetic_hop_makes_the_whole_synthetic():
    reports = [*REPORTS[:2], msgspec.structs.replace(REPORTS[2], synthetic=True)]
    evidence = made(reports=reports)
    assert evidence.synthetic
    assert all("synthetic" in " ".join(against(evidence, part)) for part in PARTS)


# -- what a hop compares -----------------------------------------------------------------------------


def hop_changed(at, **changes):
    hops = list(HOPS)
    hops[at] = msgspec.structs.replace(hops[at], **changes)
    return {"hops": tuple(hops)}


BOOT = "ffffffff-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("change", "seen_by", "named"),
    [
        ({"route_session_id": "other"}, {0, 1, 2}, "route_session_id"),
        ({"route_epoch": 5}, {0, 1, 2}, "route_epoch"),
        ({"model_artifact_digest": "c" * 64}, {0, 1, 2}, "model_artifact_digest"),
        ({"runtime_recipe_digest": "c" * 64}, {0, 1, 2}, "runtime_recipe_digest"),
        ({"layer_count": 7}, {0, 1, 2}, "layer_count"),
        ({"tokens_generated": 4}, {0, 1, 2}, "tokens_generated"),
        ({"output_digest": "c" * 64}, {0, 1, 2}, "output_digest"),
        ({"input_digest": "c" * 64}, {0}, "entered this hop"),
        ({"seams": ("c" * 64, EVIDENCE.seams[1])}, {0, 1}, "this hop"),
        ({"seams": (EVIDENCE.seams[0], "c" * 64)}, {1, 2}, "this hop"),
        ({"seams": EVIDENCE.seams[::-1]}, {0, 1, 2}, "this hop"),
        ({"seams": EVIDENCE.seams[:1]}, {0, 1, 2}, "1 between 3 hops"),
        ({"seams": (*EVIDENCE.seams, "c" * 64)}, {0, 1, 2}, "3 between 3 hops"),
        ({"synthetic": True}, {0, 1, 2}, "synthetic"),
        ({"completed_at_ms": NOW_MS + SKEW_MS + 1}, {0, 1, 2}, "completed_at_ms: +60.0 s"),
        ({"completed_at_ms": NOW_MS - SKEW_MS - 1}, {0, 1, 2}, "completed_at_ms: -60.0 s"),
        (hop_changed(0, node=KEYS[3].public), {0, 1}, "hop"),
        (hop_changed(0, boot_id=BOOT), {0, 1}, "hop"),
        (hop_changed(0, shard_id="other"), {0}, "hop"),
        (hop_changed(0, start=1), {0, 1, 2}, ""),
        (hop_changed(0, end=3), {0, 1}, "hop"),
        (hop_changed(1, node=KEYS[3].public), {0, 1, 2}, "hop"),
        (hop_changed(1, shard_id="other"), {0, 1}, "hop"),
        (hop_changed(2, boot_id=BOOT), {0, 1, 2}, "hop"),
        ({"hops": HOPS[:2]}, {0, 1, 2}, "hop"),
        ({"hops": ()}, {0, 1, 2}, "hop"),
        ({"hops": HOPS[::-1]}, {0, 1, 2}, "hop"),
    ],
)
def test_each_member_is_compared_by_whoever_saw_it(change, seen_by, named):
    evidence = msgspec.structs.replace(EVIDENCE, **change)
    found = {at: against(evidence, part) for at, part in enumerate(PARTS)}
    assert {at for at, faults in found.items() if faults} == seen_by
    assert all(any(named in fault for fault in found[at]) for at in seen_by)


def test_a_synthetic_hop_does_not_attest_that_it_was_none():
    part = msgspec.structs.replace(PARTS[1], synthetic=True)
    assert any("synthetic: false" in fault for fault in against(EVIDENCE, part))


def test_a_little_skew_is_no_lie():
    for skew in (-SKEW_MS, SKEW_MS):
        late = msgspec.structs.replace(EVIDENCE, completed_at_ms=NOW_MS + skew)
        assert [against(late, part) for part in PARTS] == [(), (), ()]


digests = st.text("0123456789abcdef", min_size=64, max_size=64)
integers = st.integers(-(2**53) + 1, 2**53 - 1)
counts = st.integers(0, 2**53 - 1)
some_hops = st.builds(
    Hop,
    boot_id=st.sampled_from([*(hop.boot_id for hop in HOPS), BOOT]),
    end=st.one_of(st.integers(-1, 8), integers),
    node=st.sampled_from([key.public for key in KEYS]),
    shard_id=st.sampled_from([*(hop.shard_id for hop in HOPS), "other"]),
    start=st.one_of(st.integers(-1, 8), integers),
)
CHANGES = {
    "completed_at_ms": integers.filter(lambda ms: abs(ms - NOW_MS) > SKEW_MS),
    "hops": st.lists(st.one_of(some_hops, st.sampled_from(HOPS)), max_size=5).map(tuple),
    "input_digest": digests,
    "layer_count": integers,
    "model_artifact_digest": digests,
    "output_digest": digests,
    "route_epoch": counts,
    "route_session_id": st.text(min_size=1, max_size=128),
    "runtime_recipe_digest": digests,
    "seams": st.lists(st.one_of(digests, st.sampled_from(EVIDENCE.seams)), max_size=4).map(tuple),
    "synthetic": st.booleans(),
    "tokens_generated": counts,
}


def test_every_member_of_evidence_is_changed_below():
    assert set(CHANGES) == {member.name for member in msgspec.structs.fields(Evidence)}


@given(data=st.data(), name=st.sampled_from(sorted(CHANGES)))
def test_any_change_is_refused_by_an_honest_participant_and_none_by_nobody(data, name):
    changed = msgspec.structs.replace(EVIDENCE, **{name: data.draw(CHANGES[name])})
    refusals = [against(changed, part) for part in PARTS]
    if changed == EVIDENCE:
        assert refusals == [(), (), ()]
    else:
        assert any(refusals)


@given(
    at=st.integers(0, 2),
    member=st.sampled_from(("boot_id", "end", "node", "shard_id", "start")),
    other=some_hops,
)
def test_any_change_of_one_hop_is_refused_by_that_hop_itself(at, member, other):
    hops = list(HOPS)
    hops[at] = msgspec.structs.replace(hops[at], **{member: getattr(other, member)})
    changed = msgspec.structs.replace(EVIDENCE, hops=tuple(hops))
    assert bool(against(changed, PARTS[at])) is (changed != EVIDENCE)


# -- bytes -------------------------------------------------------------------------------------------


def test_evidence_is_read_as_it_was_written():
    assert read_evidence(canonical(EVIDENCE)) == EVIDENCE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"{}",
        b"[" * 50_000,
        b"\xff",
        canonical(EVIDENCE) + b" ",
        b" " + canonical(EVIDENCE),
        canonical(EVIDENCE).replace(b'"session"', b'"sess\\u0069on"'),
        canonical(EVIDENCE).replace(b'"session"', b'"\\ud800"'),
        canonical(EVIDENCE).replace(b'"route_epoch":4', b'"route_epoch":4.0'),
        canonical(EVIDENCE).replace(b'"route_epoch":4', b'"route_epoch":-1'),
        canonical(EVIDENCE).replace(b'"synthetic":false', b'"synthetic":false,"synthetic":false'),
        canonical(EVIDENCE).replace(b'"synthetic":false', b'"more":1,"synthetic":false'),
        canonical(EVIDENCE).replace(b'"synthetic":false', b'"synthetic":0'),
        b"x" * (MAX_EVIDENCE + 1),
    ],
)
def test_bytes_that_cannot_be_attested_are_refused(content):
    with pytest.raises(ValueError, match="evidence"):
        read_evidence(content)


@given(content=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content):
    with pytest.raises(ValueError, match="evidence"):
        read_evidence(content)


def test_the_largest_evidence_that_is_read_still_fits_an_event():
    size = len(canonical(HOPS[0])) + 1
    hops = HOPS[:1] * ((MAX_EVIDENCE - 1_000) // size)
    evidence = msgspec.structs.replace(EVIDENCE, hops=hops)
    pad = MAX_EVIDENCE - len(canonical(evidence))
    evidence = msgspec.structs.replace(evidence, seams=(*EVIDENCE.seams, "c" * (pad - 3)))
    content = canonical(evidence)
    assert len(content) == MAX_EVIDENCE
    whole = msgspec.structs.replace(evidence, seams=EVIDENCE.seams)
    event = sign_event(
        attestation(PARTS[0], whole),
        key=KEYS[0],
        realm="a" * 32,
        after=ChainHead(issuerseq=2**53 - 2, digest=GENESIS),
        time_ms=NOW_MS,
        chance=bytes(10),
    )
    assert len(event.body) + (MAX_EVIDENCE - len(canonical(whole))) <= MAX_BODY
