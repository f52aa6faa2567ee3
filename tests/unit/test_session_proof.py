"""Session proofs: bytes that a stranger can make again, and nothing else is one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from meshnet_events.envelope import EVENT_PAYLOAD_TYPE, pre_authentication
from meshnet_events.keys import EventKey
from meshnet_events.session import PROOF_BYTES, Pair, Presented, SessionTerms

CALLER, RESPONDER = EventKey(bytes(range(32))), EventKey(bytes(range(32, 64)))
TERMS = SessionTerms(
    boots=Pair("3769e4f9-0000-4000-8000-000000000001", "b1c2d3e4-0000-4000-8000-000000000002"),
    keys=Pair(CALLER.public, RESPONDER.public),
    nonces=Pair("00" * 31 + "01", "ff" * 32),
    realm="lab",
    route_epoch=3,
    route_session_id="0192f8a0-\N{GREEK SMALL LETTER MU}\u2028",
)

PRESENTED = Presented(
    catalogue_version="24",
    model_artifact_digest="4d11cf96cc035b997789f5028f979594d3ac533bd1e3c500dbf325e42a4cde36",
    recipe_id="moe-\N{GREEK SMALL LETTER MU}",
    recipe_version="8",
    runtime_recipe_digest="5ca975dd04ce659b5b2efb4eca7293556df442c1653837fff348c4d9cf0a4a72",
)

# The vector, written out: seeds 00 01 … 1f and 20 21 … 3f sign these bytes under DSSE.
PAYLOAD = (
    '{"boots":{"caller":"3769e4f9-0000-4000-8000-000000000001",'
    '"responder":"b1c2d3e4-0000-4000-8000-000000000002"},'
    '"fingerprint":{"catalogue_version":"24",'
    '"model_artifact_digest":"4d11cf96cc035b997789f5028f979594d3ac533bd1e3c500dbf325e42a4cde36",'
    '"recipe_id":"moe-\N{GREEK SMALL LETTER MU}","recipe_version":"8",'
    '"runtime_recipe_digest":"5ca975dd04ce659b5b2efb4eca7293556df442c1653837fff348c4d9cf0a4a72"},'
    '"keys":{"caller":"UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK",'
    '"responder":"UAU2ZOXBIG6MV4FSFYNJJU2NBPDTMHSSNUF74EWIS6KLZEZCSZW5PMRM"},'
    '"nonces":{"caller":"0000000000000000000000000000000000000000000000000000000000000001",'
    '"responder":"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"},'
    '"realm":"lab","route_epoch":3,"route_session_id":"0192f8a0-\N{GREEK SMALL LETTER MU}\u2028",'
    '"signer":"caller"}'
).encode()
SIGNED = b"DSSEv1 39 application/vnd.meshnet.session.v1+json 773 " + PAYLOAD
CALLER_PROOF = bytes.fromhex(
    "68eac56df9d85dac79f0454879de212ba2fe66c9114ac3955e9c17b6a6dfdb3b"
    "45594cf2dd69f0d0e7e35d917d1b80980af98a64d3270f9b8323d8c8ce1c8203"
)
RESPONDER_PROOF = bytes.fromhex(
    "248ffef6045584b130265c0bd3e7f5810d09efbf574291f74aebcfd3515ce4c6"
    "51ee231cedcfb02df728b45e6f3683bf1ded5f2938f4c83c9d40119ec3638a0d"
)


def changed(**members):
    return msgspec.structs.replace(TERMS, **members)


def test_the_vector_is_made_by_hand_and_by_us():
    assert len(PAYLOAD) == 773
    by_hand = SigningKey(bytes(range(32))).sign(SIGNED).signature
    other = SIGNED.replace(b'"signer":"caller"', b'"signer":"responder"').replace(
        b" 773 ", b" 776 "
    )
    by_other_hand = SigningKey(bytes(range(32, 64))).sign(other).signature
    assert TERMS.prove(CALLER, "caller", PRESENTED) == CALLER_PROOF == by_hand
    assert TERMS.prove(RESPONDER, "responder", PRESENTED) == RESPONDER_PROOF == by_other_hand
    assert TERMS.is_proven("caller", PRESENTED, CALLER_PROOF)
    assert TERMS.is_proven("responder", PRESENTED, RESPONDER_PROOF)


def test_a_proof_of_one_side_is_none_of_the_other():
    assert not TERMS.is_proven("responder", PRESENTED, CALLER_PROOF)
    assert not TERMS.is_proven("caller", PRESENTED, RESPONDER_PROOF)
    # nor when a node speaks with itself, or its words are handed back to it
    own = changed(keys=Pair(CALLER.public, CALLER.public))
    assert own.is_proven("caller", PRESENTED, own.prove(CALLER, "caller", PRESENTED))
    assert not own.is_proven("responder", PRESENTED, own.prove(CALLER, "caller", PRESENTED))


@pytest.mark.parametrize(
    "terms",
    [
        changed(realm="lab2"),
        changed(route_epoch=4),
        changed(route_session_id="0192f8a0-"),
        changed(boots=Pair(TERMS.boots.responder, TERMS.boots.caller)),
        changed(boots=Pair(TERMS.boots.caller, TERMS.boots.caller)),
        changed(nonces=Pair(TERMS.nonces.responder, TERMS.nonces.caller)),
        changed(nonces=Pair(TERMS.nonces.caller, "00" * 32)),
        changed(nonces=Pair("00" * 32, TERMS.nonces.responder)),
        changed(keys=Pair(RESPONDER.public, CALLER.public)),
        changed(keys=Pair(CALLER.public, CALLER.public)),
        changed(keys=Pair(RESPONDER.public, RESPONDER.public)),
    ],
)
def test_a_proof_of_other_terms_is_none(terms):
    assert not terms.is_proven("caller", PRESENTED, CALLER_PROOF)
    assert not terms.is_proven("responder", PRESENTED, RESPONDER_PROOF)


def test_a_proof_is_no_event_and_an_event_is_no_proof():
    as_event = CALLER.sign(pre_authentication(EVENT_PAYLOAD_TYPE, PAYLOAD))
    assert not TERMS.is_proven("caller", PRESENTED, as_event)
    assert not TERMS.is_proven("caller", PRESENTED, CALLER.sign(PAYLOAD))
    assert not SIGNED.startswith(b"DSSEv1 %d %b" % (len(EVENT_PAYLOAD_TYPE), EVENT_PAYLOAD_TYPE))


def test_every_bit_of_a_proof_counts():
    for index in range(8 * PROOF_BYTES):
        bent = bytearray(CALLER_PROOF)
        bent[index // 8] ^= 1 << index % 8
        assert not TERMS.is_proven("caller", PRESENTED, bytes(bent))


@pytest.mark.parametrize("proof", [b"", CALLER_PROOF[:-1], CALLER_PROOF + b"\0", bytes(64)])
def test_a_proof_has_one_length(proof):
    assert not TERMS.is_proven("caller", PRESENTED, proof)


@pytest.mark.parametrize("text", [chr(0xD800), "a" + chr(0xDFFF), chr(0xD83D)])
def test_a_lone_surrogate_has_no_bytes_to_sign(text):
    for terms in (
        changed(route_session_id=text),
        changed(realm=text),
        changed(boots=Pair(text, text)),
        changed(nonces=Pair(text, text)),
        changed(keys=Pair(CALLER.public, text)),
    ):
        assert not terms.is_proven("caller", PRESENTED, CALLER_PROOF)
    assert not changed(keys=Pair(text, text)).is_proven("caller", PRESENTED, CALLER_PROOF)


texts = st.text(st.characters(codec=None), max_size=70)
pairs = st.builds(Pair, texts, texts)


@given(
    terms=st.builds(
        SessionTerms,
        boots=pairs,
        keys=st.one_of(pairs, st.just(TERMS.keys)),
        nonces=pairs,
        realm=texts,
        route_epoch=st.integers(),
        route_session_id=texts,
    ),
    side=st.sampled_from(("caller", "responder")),
    proof=st.binary(max_size=70),
)
def test_no_input_raises_and_none_is_a_proof(terms, side, proof):
    assert terms.is_proven(side, PRESENTED, proof) is False
