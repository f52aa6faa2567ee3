"""Whatever comes over a stream, and however it ends: the node lives, lets everything go, and serves."""

import asyncio
import gc
import logging
import random
import resource
import socket
import struct
from contextlib import suppress
from functools import partial

import anyio
import grpc
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus_kit import until
from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.node import Limits
from meshnet_node.session.transport import (
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
    MAX_SMALL_FRAME_BYTES,
    METHOD,
)
from meshnet_proto import shard_runtime_pb2 as pb
from session_kit import LAYERS, WIDTH, freed, lab, lying, stranger, tokens_of, whole_model

SHORT = Limits(
    sessions=16, open_timeout_s=0.5, idle_timeout_s=1.0, step_timeout_s=1.0, attest_timeout_s=1.0
)
PROMPT = (3, 14, 15)
UNFORESEEN = "nobody foresaw"

frames = st.one_of(
    st.builds(pb.Prompt, text=st.text(max_size=40)),
    st.builds(
        pb.Tokens,
        position=st.sampled_from((0, 1, 2, 3, 300, 2**32 - 1)),
        ids=st.lists(st.sampled_from((0, 1, 96, 97, 2**32 - 1)), max_size=4),
        sample=st.booleans(),
        text=st.binary(max_size=4),
    ),
    st.builds(
        pb.Activations,
        position=st.sampled_from((0, 1, 2, 2**32 - 1)),
        count=st.sampled_from((0, 1, 2, 2**32 - 1)),
        sample=st.booleans(),
        data=st.sampled_from((b"", b"x", bytes(4 * WIDTH), bytes(8 * WIDTH), b"\xff" * 4 * WIDTH)),
    ),
    st.builds(pb.SessionFinish),
    st.builds(pb.Evidence, evidence=st.binary(max_size=40)),
    st.builds(pb.SessionOpen, hop=st.integers(0, 70), key=st.text(max_size=60)),
    st.just(pb.CallerFrame()),
    st.binary(max_size=60),
)
stories = st.lists(frames, max_size=6)
ends = st.sampled_from(("cancel", "close", "wait", "channel"))


@pytest.fixture
def foreseen(caplog):
    """Nothing that happens is a surprise to the node, or to gRPC and asyncio below it."""
    caplog.set_level(logging.INFO)
    yield caplog
    gc.collect()
    loud = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in loud] == []
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def tell(lab_, part, story, end, *, opened=True, rng=None, **changes):
    """A stranger tells a story to a node, and ends it in one way or another."""
    async with stranger(lab_, part) as caller:
        if opened:
            await caller.opened(part, **changes)
        for frame in story:
            await caller.say(frame)
            if rng is not None and rng.random() < 0.3:
                await anyio.sleep(rng.random() / 200)
        if end == "close":
            await caller.call.done_writing()
        if end in {"close", "wait"}:
            with anyio.fail_after(5):
                with suppress(grpc.aio.AioRpcError):
                    while await caller.receive() is not None:
                        pass
            assert caller.call.done()
            assert await caller.call.code() != grpc.StatusCode.UNKNOWN, await caller.call.details()
        if end == "cancel":
            caller.call.cancel()


async def good(lab_, *parts):
    """A sound session still works."""
    async with lab_.open(*(part.hop() for part in parts)) as route:
        assert await tokens_of(route, PROMPT, 3) == whole_model(PROMPT, 3)
        done = await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert done.is_complete or len(parts) == 1
    await freed(*parts)


# grpc.aio keeps it, now and then, of a call that its caller cancels as it begins: a stranger's
LEFT_BY_STRANGERS = "_AioCall._handle_status_once_received"


def tasks(*, but=None):
    """How many tasks there are, but for one kind: gRPC has some of its own, which come and go."""
    return sum(task.get_coro().__qualname__ != but for task in asyncio.all_tasks())


async def is_unharmed_by(told, limits):
    """Strangers tell two nodes all this at once; before and after, a sound session works."""
    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=limits)
        right = await lab_.start(3, LAYERS, limits=limits)
        await good(lab_, left, right)
        before = tasks(but=LEFT_BY_STRANGERS)
        as_left = {"key": left.key, "caller_boot_id": left.node.boot_id, "hop": 1}
        as_driver = {"hops_after": [right.hop().to_proto()]}
        async with anyio.create_task_group() as group:
            for story, end, opened, later in told:
                part, changes = (right, as_left) if later else (left, as_driver)
                group.start_soon(partial(tell, lab_, part, story, end, opened=opened, **changes))
        await freed(left, right)
        await good(lab_, left, right)
        await until(lambda: tasks(but=LEFT_BY_STRANGERS) <= before)


def fuzzed(examples):
    """Run with `examples` of what up to eight strangers may tell."""
    given_told = given(
        told=st.lists(
            st.tuples(stories, ends, st.booleans(), st.booleans()), min_size=1, max_size=8
        )
    )
    many = settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    return lambda test: many(given_told(test))


@fuzzed(examples=10)
def test_no_frame_and_no_order_of_frames_harms_a_node(foreseen, told):
    asyncio.run(is_unharmed_by(told, SHORT))


@pytest.mark.slow
@fuzzed(examples=200)
def test_no_frame_and_no_order_of_frames_in_many_stories_harms_a_node(foreseen, told):
    # for minutes on a shared machine, a sound session now and then takes more than half a second
    asyncio.run(is_unharmed_by(told, msgspec.structs.replace(SHORT, open_timeout_s=2.0)))


async def test_bytes_that_are_no_frame_are_refused_at_every_point(foreseen):
    rng = random.Random(1)
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        for opened in (True, False):
            for size in (0, 1, 2, 10, 1000, 100_000):
                async with stranger(lab_, part) as caller:
                    if opened:
                        assert (await caller.opened(part)).WhichOneof("frame") == "accepted"
                    await caller.say(rng.randbytes(size))
                    error = await caller.last_word()
                    assert error.code == pb.ERROR_CODE_PROTOCOL_VIOLATION
        await good(lab_, part)


def member(number, content):
    """A member of a message on the wire."""
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


async def test_a_frame_that_grows_when_it_is_read_is_not_read(foreseen):
    """Eight megabytes of empty hops would take four hundred of memory."""
    bomb = member(1, b"\x72\x00" * (4 * 1024 * 1024 - 16))
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for opened in (False, True):
            async with stranger(lab_, part) as caller:
                if opened:
                    await caller.opened(part)
                    await caller.receive()
                else:
                    await caller.receive()
                await caller.say(bomb)
                error = await caller.last_word()
            assert error.code == pb.ERROR_CODE_PROTOCOL_VIOLATION
            assert "expected at most" in error.detail
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 100 * 1024, f"{grown // 1024} MB"
        await good(lab_, part)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(bytes(MAX_FRAME_BYTES + 1), id="over gRPC's limit"),
        pytest.param(member(4, bytes(MAX_SMALL_FRAME_BYTES)), id="over a stranger's limit"),
        pytest.param(member(3, member(2, b"\x01" * 100_000)), id="many ids"),
        pytest.param(member(2, member(1, b"a" * 100_000)), id="a long prompt"),
        pytest.param(member(6, member(1, b"[" * 100_000)), id="evidence that is deep"),
        pytest.param(b"\x0b" * 200_000, id="groups in groups"),
        pytest.param(member(15, bytes(100_000)), id="unknown members"),
    ],
)
async def test_what_is_too_large_is_refused(foreseen, content):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        async with stranger(lab_, part) as caller:
            await caller.opened(part)
            await caller.receive()
            await caller.say(content)
            if len(content) > MAX_FRAME_BYTES:
                with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                    await caller.last_word()
            else:
                assert (await caller.last_word()).code == pb.ERROR_CODE_PROTOCOL_VIOLATION
        await freed(part)
        await good(lab_, part)


async def test_silence_at_every_point_is_bounded(foreseen):
    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=SHORT)
        right = await lab_.start(3, LAYERS, limits=SHORT)
        steps = (
            pb.Tokens(ids=[1, 2]),
            pb.Tokens(position=2, ids=[3], sample=True),
            pb.SessionFinish(),
        )

        async def silent_after(count):
            async with stranger(lab_, left) as caller:
                if count:
                    await caller.opened(left, hops_after=[right.hop().to_proto()])
                    await caller.receive()
                for step in steps[: count - 1 if count else 0]:
                    await caller.say(step)
                    if getattr(step, "sample", False):
                        await caller.receive()
                assert (await caller.last_word()).code == pb.ERROR_CODE_TIMED_OUT

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                for count in range(len(steps) + 2):
                    group.start_soon(silent_after, count)
        await good(lab_, left, right)


async def test_a_silent_caller_is_named_by_the_hop_that_it_called_and_by_no_other(foreseen):
    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=SHORT)
        # the one behind waits for the same caller, and has a little less patience
        hasty = msgspec.structs.replace(SHORT, idle_timeout_s=SHORT.idle_timeout_s - 0.2)
        right = await lab_.start(3, LAYERS, limits=hasty)
        async with stranger(lab_, left) as caller:
            await caller.opened(left, hops_after=[right.hop().to_proto()])
            error = await caller.last_word()
        assert error.code == pb.ERROR_CODE_TIMED_OUT
        assert not error.HasField("hop")
        await freed(left, right)


async def test_hundreds_of_streams_over_the_limit_are_told_so(foreseen):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=msgspec.structs.replace(SHORT, sessions=8))
        heard = []
        target = part.endpoint.removeprefix("grpc://")
        async with grpc.aio.insecure_channel(target) as channel:

            async def one():
                call = channel.stream_stream(METHOD)()
                try:
                    first = pb.ResponderFrame.FromString(await call.read())
                except grpc.aio.AioRpcError:
                    # more at once than gRPC takes from one connection
                    heard.append(await call.code())
                    return
                heard.append(first.WhichOneof("frame"))
                assert part.responder.sessions <= 8
                while await call.read() is not grpc.aio.EOF:
                    pass

            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    for _ in range(600):
                        group.start_soon(one)
        assert len(heard) == 600
        assert set(heard) <= {"challenge", "error", grpc.StatusCode.UNAVAILABLE}
        assert heard.count("challenge") >= 8
        assert heard.count("error") > 300
        await freed(part)
        await good(lab_, part)


async def test_cancelling_at_random_moments_leaks_nothing(foreseen):
    rng = random.Random(7)
    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=SHORT)
        right = await lab_.start(3, LAYERS, limits=SHORT)
        await good(lab_, left, right)
        before = tasks()

        async def one():
            with anyio.move_on_after(rng.random() / 25):
                async with lab_.open(left.hop(), right.hop()) as route:
                    await tokens_of(route, PROMPT, 4)
                    await route.certify(completed_at_ms=left.node.clock_ms())

        for _ in range(12):
            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(one)
        await freed(left, right)
        await good(lab_, left, right)
        await until(lambda: tasks() <= before)


@pytest.mark.slow
async def test_memory_does_not_grow_with_sessions(foreseen):
    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=SHORT)
        right = await lab_.start(3, LAYERS, limits=SHORT)

        async def many(count):
            for _ in range(count):
                await good(lab_, left, right)
                async with stranger(lab_, left) as caller:
                    await caller.opened(left, hops_after=[right.hop().to_proto()])
                    await caller.say(b"\xff" * 5000)
            left.said.clear()
            right.said.clear()
            foreseen.clear()
            gc.collect()
            return len(gc.get_objects())

        await many(20)
        first = await many(60)
        second = await many(60)
        # what stays is what is meant to: a session's id and epoch
        assert second - first < 60 * 2 * 12


# -- below gRPC --------------------------------------------------------------------------------------


def h2_frame(kind, flags, stream, content):
    return (
        struct.pack(">I", len(content))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + content
    )


def plain_header(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_WINDOW = h2_frame(4, 0, 0, struct.pack(">HI", 4, 0))
HEADERS = h2_frame(
    1,
    4,
    1,
    plain_header(b":method", b"POST")
    + plain_header(b":scheme", b"http")
    + plain_header(b":path", METHOD.encode())
    + plain_header(b":authority", b"node")
    + plain_header(b"te", b"trailers")
    + plain_header(b"content-type", b"application/grpc"),
)


async def test_a_caller_that_takes_no_byte_is_let_go(foreseen):
    """Its HTTP/2 window is 0, so that not even the challenge can be sent."""
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        async with await anyio.connect_tcp("127.0.0.1", part.responder.port) as raw:
            await raw.send(PREFACE + NO_WINDOW + HEADERS)
            await until(lambda: part.responder.sessions == 1)
            await until(lambda: part.responder.sessions == 0, seconds=2)
        await good(lab_, part)


@pytest.mark.parametrize("last", [h2_frame(3, 0, 1, struct.pack(">I", 8)), b""])
async def test_callers_that_are_gone_at_once_are_no_surprise(foreseen, last):
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        for _ in range(100):
            async with await anyio.connect_tcp("127.0.0.1", part.responder.port) as raw:
                await raw.send(PREFACE + h2_frame(4, 0, 0, b"") + HEADERS + last)
        await freed(part)
        await good(lab_, part)


async def test_noise_on_the_port_harms_nobody(foreseen):
    rng = random.Random(3)
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        for content in (b"", b"GET / HTTP/1.1\r\n\r\n", PREFACE, PREFACE + rng.randbytes(500)):
            async with await anyio.connect_tcp("127.0.0.1", part.responder.port) as raw:
                await raw.send(content or b"\x00")
        for _ in range(20):
            async with await anyio.connect_tcp("127.0.0.1", part.responder.port) as raw:
                broken = bytearray(PREFACE + NO_WINDOW + HEADERS)
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
                await raw.send(bytes(broken))
                end = raw.extra(anyio.abc.SocketAttribute.raw_socket)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await freed(part)
        await good(lab_, part)


@pytest.mark.parametrize("kind", ["tokens", "reports"])
async def test_a_next_hop_that_answers_too_much_is_cut_off(foreseen, kind):
    def flood(frame):
        if frame.WhichOneof("frame") != kind:
            return frame
        if kind == "tokens":
            frame.tokens.text = bytes(MAX_ANSWER_BYTES)
            return frame
        return pb.ResponderFrame(reports=pb.HopReports(reports=[pb.HopReport()] * 600_000))

    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=SHORT)
        right = await lab_.start(3, LAYERS, limits=SHORT)
        with lying(right, up=flood):
            async with lab_.open(left.hop(), right.hop()) as route:
                if kind == "reports":
                    await tokens_of(route, PROMPT, 1)
                work = tokens_of(route, PROMPT, 1) if kind == "tokens" else route.finish()
                with pytest.raises(SessionFailed, match="resource_exhausted") as caught:
                    await work
        assert caught.value.hop == 1
        await freed(left, right)
        await good(lab_, left, right)


async def test_log_lines_and_errors_carry_no_payload_and_no_secret(foreseen):
    secret = "a prompt that is nobody's business"
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        told = []
        for frame in (
            pb.Prompt(text=secret * 3_000),
            pb.Evidence(evidence=secret.encode()),
            pb.Tokens(position=3, ids=[1], text=secret.encode()),
            pb.Activations(count=1, data=secret.encode()),
            secret.encode(),
        ):
            async with stranger(lab_, part) as caller:
                opened = await caller.opening(part)
                await caller.say(opened)
                await caller.say(frame)
                told.append((await caller.last_word()).detail)
        lines = "\n".join([record.getMessage() for record in foreseen.records] + told)
        assert len(told) == 5
        assert secret not in lines
        assert part.key.seed_text() not in lines
        assert opened.proof.hex() not in lines
        assert UNFORESEEN not in lines
