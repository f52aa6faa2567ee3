"""Mutual TLS between hops: one authority's certificates open sessions, and nothing else does."""

import grpc
import pytest
import trustme

from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.link import ask_key
from meshnet_node.session.transport import METHOD, Tls, TlsFiles
from meshnet_proto import shard_runtime_pb2 as pb
from session_kit import LAYERS, freed, lab, tokens_of, whole_model

PROMPT = (3, 14, 15)


def pem(blobs):
    return b"".join(blob.bytes() for blob in blobs)


def signed_by(authority, *names):
    certificate = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    return Tls(
        authority=authority.cert_pem.bytes(),
        certificate=pem(certificate.cert_chain_pems),
        key=certificate.private_key_pem.bytes(),
    )


@pytest.fixture(scope="module")
def realm():
    return trustme.CA()


@pytest.fixture(scope="module")
def stranger():
    return trustme.CA()


async def refused(lab_, hop, tls):
    with pytest.raises(SessionFailed) as caught:
        async with lab_.open(hop, caller=lab_.caller(tls=tls)):
            pass
    return caught.value


async def test_certificates_of_one_authority_carry_a_route(realm):
    async with lab() as lab_:
        left = await lab_.start(0, 3, tls=signed_by(realm))
        right = await lab_.start(3, LAYERS, tls=signed_by(realm))
        assert left.endpoint.startswith("grpcs://")
        caller = lab_.caller(tls=signed_by(realm))
        async with lab_.open(left.hop(), right.hop(), caller=caller) as route:
            assert await tokens_of(route, PROMPT, 4) == whole_model(PROMPT, 4)
            done = await route.certify(completed_at_ms=left.node.clock_ms())
        assert done.is_complete
        assert await ask_key(left.endpoint, signed_by(realm)) == left.key.public
        await freed(left, right)


async def test_a_node_behind_tls_opens_plain_neighbours_too(realm):
    async with lab() as lab_:
        left = await lab_.start(0, 3, tls=signed_by(realm))
        right = await lab_.start(3, LAYERS)
        caller = lab_.caller(tls=signed_by(realm))
        async with lab_.open(left.hop(), right.hop(), caller=caller) as route:
            assert await tokens_of(route, PROMPT, 2) == whole_model(PROMPT, 2)


async def test_a_caller_with_a_certificate_of_another_authority_is_not_heard(realm, stranger):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, tls=signed_by(realm))
        theirs = signed_by(stranger)
        mixed = Tls(signed_by(realm).authority, theirs.certificate, theirs.key)
        for tls in (theirs, mixed):
            failure = await refused(lab_, part.hop(), tls)
            assert failure.code == pb.ERROR_CODE_HOP_LOST
        assert part.responder.sessions == 0
        assert lab_.tracker.asked == []


async def test_a_hop_with_a_certificate_of_another_authority_is_not_spoken_to(realm, stranger):
    async with lab() as lab_:
        theirs = signed_by(stranger)
        trusting = Tls(signed_by(realm).authority, theirs.certificate, theirs.key)
        part = await lab_.start(0, LAYERS, tls=trusting)
        failure = await refused(lab_, part.hop(), signed_by(realm))
        assert failure.code == pb.ERROR_CODE_HOP_LOST
        assert lab_.tracker.asked == []


async def test_a_certificate_for_another_name_is_not_that_hops(realm):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, tls=signed_by(realm, "elsewhere.example"))
        assert (await refused(lab_, part.hop(), signed_by(realm))).code == pb.ERROR_CODE_HOP_LOST


async def test_a_caller_without_a_certificate_is_not_heard(realm):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, tls=signed_by(realm))
        credentials = grpc.ssl_channel_credentials(realm.cert_pem.bytes())
        target = part.endpoint.removeprefix("grpcs://")
        async with grpc.aio.secure_channel(target, credentials) as channel:
            call = channel.stream_stream(METHOD)()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert lab_.tracker.asked == []


async def test_plain_and_tls_do_not_understand_each_other(realm):
    async with lab() as lab_:
        tls = signed_by(realm)
        behind = await lab_.start(0, LAYERS, tls=tls)
        plain = await lab_.start(0, LAYERS)
        to_tls = behind.hop(endpoint=behind.endpoint.replace("grpcs", "grpc"))
        to_plain = plain.hop(endpoint=plain.endpoint.replace("grpc", "grpcs"))
        for hop in (to_tls, to_plain):
            assert (await refused(lab_, hop, tls)).code == pb.ERROR_CODE_HOP_LOST
        await freed(behind, plain)


async def test_a_secure_endpoint_needs_files_and_says_so(realm):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, tls=signed_by(realm))
        failure = await refused(lab_, part.hop(), None)
        assert failure.code == pb.ERROR_CODE_UNAVAILABLE
        assert "this side has none" in failure.detail


def test_files_are_read_and_a_key_is_never_shown(realm, tmp_path):
    tls = signed_by(realm)
    files = TlsFiles(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    files.authority.write_bytes(tls.authority)
    files.certificate.write_bytes(tls.certificate)
    files.key.write_bytes(tls.key)
    assert Tls.read(files) == tls
    assert "PRIVATE" not in repr(tls)
    files.key.unlink()
    with pytest.raises(FileNotFoundError):
        Tls.read(files)
