"""A peer that is not ours, written from the proto and the documents alone.

Its messages are compiled here, from the proto under another name and package; its keys, proofs and
digests are made by hand. Nothing of ours speaks for it, so what it needs to know is what the documents
say.
"""

import base64
import binascii
import hashlib
import importlib
import json
import math
import os
import struct
import subprocess
import sys
import threading
import uuid
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import grpc
import msgspec
import pytest
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from meshnet_events.keys import EventKey
from meshnet_node.session.failure import SessionFailed
from session_kit import (
    ATTESTED,
    LAYERS,
    SHOOK_HANDS,
    VOCABULARY,
    WIDTH,
    Remote,
    freed,
    lab,
    tokens_of,
    whole_model,
)

PROTO = Path(__file__).parents[2] / "proto" / "meshnet_proto" / "shard_runtime.proto"
METHOD = "/meshnet.shard.v1.ShardRuntime/Session"


@pytest.fixture(scope="module")
def wire(require, tmp_path_factory):
    """The messages, compiled by a stranger: another file, another package, another module."""
    require("grpc_tools.protoc")
    directory = tmp_path_factory.mktemp("stranger")
    text = PROTO.read_text("utf-8").replace("package meshnet.shard.v1", "package stranger.wire")
    (directory / "stranger_wire.proto").write_text(text, "utf-8")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{directory}",
            f"--python_out={directory}",
            "stranger_wire.proto",
        ],
        check=True,
    )
    sys.path.insert(0, str(directory))
    try:
        return importlib.import_module("stranger_wire_pb2")
    finally:
        sys.path.remove(str(directory))


class Key:
    """An Ed25519 key as the documents spell it: base32 of prefix, key and CRC-16/XMODEM."""

    def __init__(self):
        self.signing = SigningKey(os.urandom(32))
        body = bytes([20 << 3]) + bytes(self.signing.verify_key)
        crc = struct.pack("<H", binascii.crc_hqx(body, 0))
        self.text = base64.b32encode(body + crc).decode()

    def prove(self, payload):
        return self.signing.sign(signed_bytes(payload)).signature


def signed_bytes(terms):
    """DSSE over the canonical JSON: keys sorted, no white space, UTF-8."""
    payload = json.dumps(terms, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    kind = b"application/vnd.meshnet.session.v1+json"
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def is_proven(key_text, terms, proof):
    raw = base64.b32decode(key_text)[1:33]
    try:
        VerifyKey(raw).verify(signed_bytes(terms), proof)
    except BadSignatureError:
        return False
    return True


def terms_of(frame, responder, nonce, *, signer, presented=None):
    presented = frame.fingerprint if presented is None else presented
    return {
        "boots": {"caller": frame.caller_boot_id, "responder": frame.responder_boot_id},
        "fingerprint": {
            name: getattr(presented, name) for name in presented.DESCRIPTOR.fields_by_name
        },
        "keys": {"caller": frame.key, "responder": responder},
        "nonces": {"caller": frame.nonce.hex(), "responder": nonce.hex()},
        "realm": frame.realm,
        "route_epoch": frame.route_epoch,
        "route_session_id": frame.route_session_id,
        "signer": signer,
    }


class Frames:
    """What a caller of synchronous gRPC sends, when it wants to."""

    def __init__(self):
        self.queue, self.more = [], threading.Condition()

    def put(self, frame):
        with self.more:
            self.queue.append(frame)
            self.more.notify()

    def __iter__(self):
        return self

    def __next__(self):
        with self.more:
            self.more.wait_for(lambda: self.queue, timeout=10)
            frame = self.queue.pop(0) if self.queue else None
        if frame is None:
            raise StopIteration
        return frame


@contextmanager
def session(wire, endpoint):
    """A stream to a node: what to send with, and what comes back."""
    with grpc.insecure_channel(endpoint.removeprefix("grpc://")) as channel:
        open_stream = channel.stream_stream(
            METHOD,
            request_serializer=wire.CallerFrame.SerializeToString,
            response_deserializer=wire.ResponderFrame.FromString,
        )
        frames = Frames()
        answers = open_stream(frames, timeout=10)
        try:
            yield frames.put, lambda: next(answers)
        finally:
            frames.put(None)
            answers.cancel()


def opening(wire, part, key, boot_id, challenge, after=(), **changes):
    fingerprint = part.shard.fingerprint.to_dict()
    frame = wire.SessionOpen(
        realm="lab",
        purpose=2,
        route_session_id=f"a stranger's, {uuid.uuid4()} ÿ \u2028",
        route_epoch=7,
        hop=0,
        key=key.text,
        nonce=os.urandom(32),
        caller_boot_id=boot_id,
        responder_boot_id=part.node.boot_id,
        fingerprint=wire.Fingerprint(**fingerprint),
        shard_id="main",
        range=wire.ShardRange(
            start=part.shard.identity.shard_start, end=part.shard.identity.shard_end
        ),
        hops_after=[
            wire.NextHop(
                node=one.key.public,
                boot_id=one.node.boot_id,
                shard_id="main",
                endpoint=one.endpoint,
                range=wire.ShardRange(
                    start=one.shard.identity.shard_start, end=one.shard.identity.shard_end
                ),
            )
            for one in after
        ],
    )
    for name, value in changes.items():
        setattr(frame.fingerprint, name, value)
    terms = terms_of(frame, challenge.key, challenge.nonce, signer="caller")
    frame.proof = key.prove(terms)
    return frame


async def in_thread(work, *arguments):
    return await anyio.to_thread.run_sync(lambda: work(*arguments))


async def test_a_client_that_is_not_ours_drives_a_whole_certification(wire):
    prompt = (3, 14, 15)

    def drive(left, right, key, boot):
        with session(wire, left.endpoint) as (say, hear):
            challenge = hear().challenge
            frame = opening(wire, left, key, boot, challenge, after=[right])
            say(wire.CallerFrame(open=frame))
            said = hear().accepted.responder
            terms = terms_of(
                frame,
                challenge.key,
                challenge.nonce,
                signer="responder",
                presented=said.fingerprint,
            )
            assert challenge.key == left.key.public
            assert is_proven(challenge.key, terms, said.proof)
            assert not is_proven(challenge.key, terms | {"signer": "caller"}, said.proof)
            assert said.boot_id == left.node.boot_id
            ready = hear().ready
            assert (ready.vocabulary, ready.max_positions) == (VOCABULARY, 256)
            inputs, out, position = list(prompt), [], 0
            taken = []
            for _ in range(4):
                tokens = wire.Tokens(position=position, ids=inputs, sample=True)
                say(wire.CallerFrame(tokens=tokens))
                taken += inputs
                position += len(inputs)
                inputs = list(hear().tokens.ids)
                out += inputs
            say(wire.CallerFrame(finish=wire.SessionFinish()))
            reports = hear().reports.reports
            evidence = {
                "route_session_id": frame.route_session_id,
                "route_epoch": 7,
                "model_artifact_digest": frame.fingerprint.model_artifact_digest,
                "runtime_recipe_digest": frame.fingerprint.runtime_recipe_digest,
                "hops": [
                    {
                        "node": part.key.public,
                        "boot_id": part.node.boot_id,
                        "shard_id": "main",
                        "start": start,
                        "end": end,
                    }
                    for part, start, end in ((left, 0, 3), (right, 3, LAYERS))
                ],
                "layer_count": LAYERS,
                "tokens_generated": 4,
                "synthetic": False,
                "completed_at_ms": left.node.clock_ms(),
                "input_digest": hashlib.sha256(
                    b"".join(struct.pack("<I", one) for one in taken)
                ).hexdigest(),
                "output_digest": hashlib.sha256(
                    b"".join(struct.pack("<I", one) for one in out)
                ).hexdigest(),
                "seams": [reports[0].out_digest],
            }
            text = json.dumps(evidence, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            say(wire.CallerFrame(evidence=wire.Evidence(evidence=text.encode())))
            return out, [one.attested for one in hear().attestations.attestations]

    async with lab() as lab_:
        left, right = await lab_.start(0, 3), await lab_.start(3, LAYERS)
        key, boot = Key(), str(uuid.uuid4())
        lab_.tracker.knows(key.text, boot)
        out, attested = await in_thread(drive, left, right, key, boot)
        assert out == whole_model(prompt, 4)
        assert attested == [True, True]
        assert [len(part.said.of(ATTESTED)) for part in (left, right)] == [1, 1]
        await freed(left, right)


async def test_a_client_that_is_not_ours_is_refused_for_another_digest(wire):
    def ask(part, key, boot, changes):
        with session(wire, part.endpoint) as (say, hear):
            challenge = hear().challenge
            frame = opening(wire, part, key, boot, challenge, **changes)
            say(wire.CallerFrame(open=frame))
            error = hear().error
            # the refusal is proven too: it can be believed and published
            terms = terms_of(
                frame,
                challenge.key,
                challenge.nonce,
                signer="responder",
                presented=error.responder.fingerprint,
            )
            assert is_proven(challenge.key, terms, error.responder.proof)
            return error

    async with lab() as lab_:
        part, key, boot = await lab_.start(0, LAYERS), Key(), str(uuid.uuid4())
        lab_.tracker.knows(key.text, boot)
        for name in ("model_artifact_digest", "runtime_recipe_digest"):
            for value in ("f" * 64, "", "F" * 64, "g"):
                error = await in_thread(ask, part, key, boot, {name: value})
                assert (error.code, error.retryable) == (1, False)
                ours = part.shard.fingerprint.to_dict()
                assert getattr(error.responder.fingerprint, name) == ours[name]
        # labels are never compared
        with session(wire, part.endpoint) as (say, hear):

            def labelled():
                frame = opening(wire, part, key, boot, hear().challenge, recipe_id="another")
                say(wire.CallerFrame(open=frame))
                return hear().WhichOneof("frame")

            assert await in_thread(labelled) == "accepted"
        await freed(part)


@pytest.mark.parametrize("fault", ["other key", "responder's side", "old nonce", "event type"])
async def test_a_client_that_is_not_ours_is_refused_for_a_bad_proof(wire, fault):
    def ask(part, key, boot):
        with session(wire, part.endpoint) as (say, hear):
            challenge = hear().challenge
            frame = opening(wire, part, key, boot, challenge)
            terms = terms_of(frame, challenge.key, challenge.nonce, signer="caller")
            if fault == "other key":
                frame.proof = Key().prove(terms)
            elif fault == "responder's side":
                frame.proof = key.prove(terms | {"signer": "responder"})
            elif fault == "old nonce":
                old = terms_of(frame, challenge.key, os.urandom(32), signer="caller")
                frame.proof = key.prove(old)
            else:
                signed = signed_bytes(terms).replace(b"session.v1", b"event.v1")
                frame.proof = key.signing.sign(signed).signature
            say(wire.CallerFrame(open=frame))
            return hear().error

    async with lab() as lab_:
        part, key, boot = await lab_.start(0, LAYERS), Key(), str(uuid.uuid4())
        lab_.tracker.knows(key.text, boot)
        error = await in_thread(ask, part, key, boot)
        assert error.code == 5
        await freed(part)


# -- a server that is not ours -----------------------------------------------------------------------


def layer(number, row, sums):
    """One layer of the toy, written again."""
    sums[:] = [a + b for a, b in zip(sums, row, strict=True)]
    mixed = [
        math.tanh(1.7 * row[i] - 0.9 * row[i - 1] + 0.3 * sums[i - 2] + 0.1 * number)
        for i in range(WIDTH)
    ]
    return list(struct.unpack(f"<{WIDTH}f", struct.pack(f"<{WIDTH}f", *mixed)))


class Server:
    """The last hop of a route, in synchronous gRPC, or one that does something wrong."""

    def __init__(self, wire, fingerprint, start, fault=None):
        self.wire, self.fingerprint, self.start, self.fault = wire, fingerprint, start, fault
        self.key, self.boot_id = Key(), str(uuid.uuid4())
        self.opened = []
        handler = grpc.stream_stream_rpc_method_handler(
            self.session,
            request_deserializer=wire.CallerFrame.FromString,
            response_serializer=wire.ResponderFrame.SerializeToString,
        )
        self.pool = futures.ThreadPoolExecutor(4)
        self.server = grpc.server(self.pool)
        service = grpc.method_handlers_generic_handler(
            "meshnet.shard.v1.ShardRuntime", {"Session": handler}
        )
        self.server.add_generic_rpc_handlers((service,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_exc):
        self.server.stop(None).wait()
        self.pool.shutdown()

    def session(self, frames, context):
        wire, nonce = self.wire, os.urandom(32)
        Answer = wire.ResponderFrame  # noqa: N806 - it is a type
        if self.fault == "garbage":
            yield Answer(tokens=wire.Tokens(ids=[1]))
            return
        if self.fault == "cancelled":
            context.abort(grpc.StatusCode.CANCELLED, "x\n" * 2000)
        yield Answer(challenge=wire.SessionChallenge(key=self.key.text, nonce=nonce))
        opened = next(frames).open
        self.opened.append(opened)
        fingerprint = wire.Fingerprint(**self.fingerprint)
        if self.fault in {"differs", "refuses"}:
            fingerprint.runtime_recipe_digest = "d" * 64
        terms = terms_of(opened, self.key.text, nonce, signer="responder", presented=fingerprint)
        proof = self.key.prove(terms)
        if self.fault == "proof":
            proof = bytes(64)
        if self.fault == "reflects":
            proof = opened.proof
        if self.fault == "other on the way":  # someone between the two changed what it presents
            fingerprint.runtime_recipe_digest = "d" * 64
        boot = str(uuid.uuid4()) if self.fault == "boot" else self.boot_id
        responder = wire.Responder(boot_id=boot, fingerprint=fingerprint, proof=proof)
        if self.fault in {"refuses", "refuses itself"}:
            yield Answer(error=wire.ShardError(code=1, detail="no", responder=responder))
            return
        yield Answer(accepted=wire.SessionAccepted(responder=responder))
        if self.fault == "not ready":
            yield Answer(ready=wire.SessionReady())
            return
        if self.fault == "eager":
            yield Answer(tokens=wire.Tokens(ids=[1]))
            return
        yield Answer(
            ready=wire.SessionReady(
                max_positions=9, max_positions_per_frame=2, vocabulary=VOCABULARY
            )
        )
        yield from self.compute(frames, opened)

    def compute(self, frames, opened):
        wire = self.wire
        Answer = wire.ResponderFrame  # noqa: N806 - it is a type
        sums = [[0.0] * WIDTH for _ in range(LAYERS)]
        entered, generated, count = hashlib.sha256(), hashlib.sha256(), 0
        for frame in frames:
            match frame.WhichOneof("frame"):
                case "activations":
                    asked = frame.activations
                    entered.update(asked.data)
                    numbers = struct.unpack(f"<{len(asked.data) // 4}f", asked.data)
                    rows = [list(numbers[at : at + WIDTH]) for at in range(0, len(numbers), WIDTH)]
                    for number in range(self.start, LAYERS):
                        rows = [layer(number, row, sums[number]) for row in rows]
                    if asked.sample:
                        scores = [
                            sum(math.cos(one * (i + 2)) * x for i, x in enumerate(rows[-1]))
                            for one in range(VOCABULARY)
                        ]
                        token = scores.index(max(scores))
                        generated.update(struct.pack("<I", token))
                        count += 1
                        yield Answer(tokens=wire.Tokens(ids=[token], text=b"?"))
                case "finish":
                    report = wire.HopReport(
                        hop=opened.hop,
                        in_digest=entered.hexdigest(),
                        out_digest=generated.hexdigest(),
                        tokens_generated=count,
                    )
                    yield Answer(reports=wire.HopReports(reports=[report]))
                case "evidence":
                    told = wire.Attestation(hop=opened.hop, attested=True, sequence=7)
                    yield Answer(attestations=wire.Attestations(attestations=[told]))
                    return


@contextmanager
def foreign(wire, lab_, start, fault=None):
    """A server that is not ours, listed as a node that holds the layers from `start` on."""
    probe = Remote(EventKey(bytes(32)), "", "", start, LAYERS)
    with Server(wire, probe.shard.fingerprint.to_dict(), start, fault) as server:
        part = Remote(
            _Public(server.key.text),
            server.boot_id,
            f"grpc://127.0.0.1:{server.port}",
            start,
            LAYERS,
        )
        lab_.tracker.lists(part)
        yield server, part


async def failure_of(lab_, *hops):
    """What a driver hears of a route that cannot be opened."""
    with pytest.raises(SessionFailed) as caught:
        async with lab_.open(*hops):
            pass
    return caught.value


class _Public(msgspec.Struct):
    public: str


async def test_a_server_that_is_not_ours_is_the_next_hop(wire):
    async with lab() as lab_:
        left = await lab_.start(0, 3)
        with foreign(wire, lab_, 3) as (server, right):
            async with lab_.open(left.hop(), right.hop()) as route:
                # the least of all hops holds for the route
                assert route.max_positions == 9
                assert await tokens_of(route, (3, 14, 15), 5) == whole_model((3, 14, 15), 5)
                done = await route.certify(completed_at_ms=left.node.clock_ms())
        assert done.is_complete
        assert [(one.attested, one.sequence) for one in done.attestations][1] == (True, 7)
        (fact,) = left.said.of(SHOOK_HANDS)
        assert (fact.accepted, fact.peer) == (True, server.key.text)
        assert server.opened[0].hop == 1
        await freed(left)


async def test_a_server_that_is_not_ours_is_the_first_hop(wire):
    async with lab() as lab_:
        with foreign(wire, lab_, 0) as (server, part):
            async with lab_.open(part.hop()) as route:
                assert (route.vocabulary, route.max_positions) == (VOCABULARY, 9)
            (opened,) = server.opened
        assert (opened.hop, opened.key) == (0, lab_.driver_key.public)
        with foreign(wire, lab_, 0, "differs") as (_server, part):
            caught = await failure_of(lab_, part.hop())
        assert caught.reason == "fingerprint-mismatch"


@pytest.mark.parametrize(
    ("fault", "reason", "published"),
    [
        ("garbage", "protocol-violation", []),
        ("cancelled", "hop-lost", []),
        ("proof", "bad-proof", []),
        ("reflects", "bad-proof", []),
        ("other on the way", "bad-proof", []),
        ("boot", "bad-proof", []),
        ("differs", "fingerprint-mismatch", [False]),
        ("refuses", "fingerprint-mismatch", [False]),
        ("refuses itself", "fingerprint-mismatch", [False]),
        ("not ready", "protocol-violation", [True]),
        ("eager", "protocol-violation", [True]),
    ],
)
async def test_a_server_that_is_not_ours_and_does_wrong_is_named(wire, fault, reason, published):
    async with lab() as lab_:
        left = await lab_.start(0, 3)
        with foreign(wire, lab_, 3, fault) as (_server, right):
            caught = await failure_of(lab_, left.hop(), right.hop())
        assert (caught.reason, caught.hop) == ("hop-lost", 1)
        assert reason in str(caught)
        assert str(caught).isprintable()
        assert [fact.accepted for fact in left.said.of(SHOOK_HANDS)] == published
        await freed(left)
