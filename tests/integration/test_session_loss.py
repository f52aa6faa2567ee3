"""A hop that goes away, whenever it does: everyone hears of it, everything is freed, nothing counts."""

import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
import pytest

from bus_kit import until
from meshnet_events.envelope import canonical
from meshnet_events.keys import EventKey
from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.node import Limits
from meshnet_proto import shard_runtime_pb2 as pb
from session_kit import (
    ATTESTED,
    LAYERS,
    Remote,
    ToyShard,
    freed,
    lab,
    lying,
    stranger,
    tokens_of,
    whole_model,
    wire,
)

SHORT = Limits(open_timeout_s=0.7, idle_timeout_s=1.2, step_timeout_s=0.7, attest_timeout_s=0.7)
PROMPT = (3, 14, 15)
STAGES = ("before open", "after open", "mid-token", "before finish", "before attest")
CHILD = Path(__file__).parent.parent / "session_child.py"


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr("meshnet_node.session.hop._MARGIN_S", 0.2)


async def drive(lab_, parts, stage, lose):
    """A certification in which something is lost at a stage."""
    if stage == "before open":
        await lose()
    async with lab_.open(*(part.hop() for part in parts)) as route:
        if stage == "after open":
            await lose()
        async for token in route.generate(PROMPT, max_tokens=3):
            if stage == "mid-token" and token:
                stage = "lost"
                await lose()
        if stage == "before finish":
            await lose()
        evidence = route.evidence(await route.finish(), completed_at_ms=time.time_ns() // 1_000_000)
        if stage == "before attest":
            await lose()
        return await route.ask_to_attest(evidence)


async def is_lost(lab_, parts, stage, lose):
    """Hop 1 goes away at a stage: the driver hears that it was hop 1, and nothing is certified."""
    failure = None
    try:
        done = await drive(lab_, parts, stage, lose)
    except SessionFailed as failed:
        failure = failed
    if failure is not None:
        assert (failure.code, failure.hop) == (pb.ERROR_CODE_HOP_LOST, 1)
        assert failure.detail
        assert parts[0].said.of(ATTESTED) == []
    else:
        # the evidence was on its way already: the hop before saw all of it, and says who is gone
        assert stage == "before attest"
        assert [one.attested for one in done.attestations] == [True] + [False] * (len(parts) - 1)
        assert done.attestations[1].detail
        assert not done.is_complete


def warned(caplog):
    """The hops whose owners are warned of what became of their session."""
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    return {int(found[1]) for text in said if (found := re.match(r"session .*, hop (\d+): ", text))}


@pytest.mark.parametrize("how", ["cut", "silence"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_wire_between_two_hops_that_is_lost_certifies_nothing(stage, how, caplog):
    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=SHORT)
        right = await lab_.start(3, LAYERS, limits=SHORT)
        async with wire(right) as way:
            lab_.tracker.lists(right)

            async def lose():
                getattr(way, how)()
                await anyio.sleep(0.05)

            began = time.monotonic()
            await is_lost(lab_, (left, right), stage, lose)
            assert time.monotonic() - began < 4
            assert right.said.of(ATTESTED) == []
            await freed(left, right)
        assert 0 in warned(caplog) or stage == "before attest"
        assert 1 in warned(caplog) or stage == "before open", "the hop that was there is told too"


@pytest.mark.parametrize("how", ["cut", "silence"])
@pytest.mark.parametrize("stage", STAGES[1:])
async def test_a_driver_that_is_lost_frees_every_hop(stage, how, monkeypatch, caplog):
    for name in ("STEP_TIMEOUT_S", "ATTEST_TIMEOUT_S"):
        monkeypatch.setattr(f"meshnet_node.session.driver.{name}", 0.5)
    async with lab() as lab_:
        left = await lab_.start(0, 3, limits=SHORT)
        right = await lab_.start(3, LAYERS, limits=SHORT)
        async with wire(left) as way:

            async def lose():
                getattr(way, how)()
                await anyio.sleep(0.05)

            with pytest.raises(SessionFailed) as caught:
                await drive(lab_, (left, right), stage, lose)
            assert caught.value.hop == 0
            await freed(left, right)
        assert warned(caplog) == {0, 1}, "the owner of every node is told"
        assert left.said.of(ATTESTED) == right.said.of(ATTESTED) == []


async def test_the_hop_that_is_silent_is_the_one_that_is_named():
    """In a route of four the third is silent: all those before it wait, and none blames another."""
    async with lab() as lab_:
        bounds = ((0, 1), (1, 2), (2, 4), (4, LAYERS))
        parts = [await lab_.start(a, b, limits=SHORT) for a, b in bounds]
        async with wire(parts[2]) as way:
            lab_.tracker.lists(parts[2])
            async with lab_.open(*(part.hop() for part in parts)) as route:
                await tokens_of(route, PROMPT, 1)
                way.silence()
                with pytest.raises(SessionFailed) as caught:
                    await tokens_of(route, (1,), 1)
            assert (caught.value.code, caught.value.hop) == (pb.ERROR_CODE_HOP_LOST, 2)
            assert "timed-out" in caught.value.detail
            await freed(*parts)


async def test_a_hop_that_cannot_be_reached_while_a_route_opens_is_the_one_that_is_named():
    async with lab() as lab_:
        bounds = ((0, 1), (1, 2), (2, 4), (4, LAYERS))
        parts = [await lab_.start(a, b, limits=SHORT) for a, b in bounds]
        async with wire(parts[3]) as way:
            lab_.tracker.lists(parts[3])
            way.silence()
            with pytest.raises(SessionFailed) as caught:
                async with lab_.open(*(part.hop() for part in parts)):
                    pass
            assert (caught.value.code, caught.value.hop) == (pb.ERROR_CODE_HOP_LOST, 3)
            await freed(*parts)


async def test_a_hop_lost_while_it_attests_leaves_the_words_of_the_others():
    async with lab() as lab_:
        parts = [await lab_.start(a, b, limits=SHORT) for a, b in ((0, 2), (2, 4), (4, LAYERS))]
        async with wire(parts[1]) as way:
            lab_.tracker.lists(parts[1])

            def cut(frame):
                if frame.HasField("attestations"):
                    way.silence()
                return frame

            with lying(parts[1], up=cut):
                done = await drive(lab_, parts, "none", None)
        assert [one.attested for one in done.attestations] == [True, False, False]
        assert [len(part.said.of(ATTESTED)) for part in parts] == [1, 1, 1]
        await freed(*parts)


# -- threads that compute ----------------------------------------------------------------------------


class Slow(ToyShard):
    """A shard whose forwards take until they are let go."""

    def __init__(self, *layers):
        super().__init__(*layers, twist=self.work)
        self.began, self.go_on = threading.Event(), threading.Event()

    def work(self, _slot, _rows):
        self.began.set()
        assert self.go_on.wait(10)


@pytest.mark.parametrize("how", ["caller cancels", "wire is cut", "node stops", "newer epoch"])
async def test_work_that_has_begun_is_waited_for_before_anything_is_closed(how, caplog):
    caplog.set_level(logging.INFO, logger="meshnet_node.session")
    async with lab() as lab_:
        shard = Slow(0, LAYERS)
        part = await lab_.start(0, LAYERS, loaded=shard)
        async with wire(part) as way:
            session = f"slow, {how}"
            direct = part.hop(endpoint=f"grpc://127.0.0.1:{part.responder.port}")

            async def generate():
                with anyio.move_on_after(5) as scope:
                    scopes.append(scope)
                    with suppress(SessionFailed):
                        async with lab_.open(part.hop(), session=session) as route:
                            await tokens_of(route, PROMPT, 1)

            async def newer(hop, session):
                async with lab_.open(hop, session=session, epoch=1):
                    pass

            scopes = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(generate)
                await until(shard.began.is_set)
                if how == "caller cancels":
                    scopes[0].cancel()
                elif how == "wire is cut":
                    way.cut()
                elif how == "node stops":
                    part.responder.stop_taking()
                else:
                    tasks.start_soon(newer, direct, session)
                await anyio.sleep(0.2)
                # the thread still computes: its slot is open, and nobody else has its turn
                assert shard.open_slots == 1
                assert part.shard.turn.borrowed_tokens == 1
                shard.go_on.set()
            await freed(part)
    ended = {
        "caller cancels": "its driver closed it or went away",
        "wire is cut": "its driver closed it or went away",
        "node stops": "this node is stopping",
        "newer epoch": "failed: stale-epoch",
    }
    said = [record.getMessage() for record in caplog.records]
    assert any(f"session {session}, epoch 0, hop 0: {ended[how]}" in line for line in said), said


async def test_many_sessions_of_one_shard_compute_in_turn():
    async with lab() as lab_:
        parts = [await lab_.start(0, 3), await lab_.start(3, LAYERS)]
        said = []

        async def one(seed):
            async with lab_.open(*(part.hop() for part in parts)) as route:
                ids = await route.encode(f"prompt {seed}")
                said.append(await tokens_of(route, ids, 5) == whole_model(ids, 5))

        async with anyio.create_task_group() as tasks:
            for seed in range(12):
                tasks.start_soon(one, seed)
        assert said == [True] * 12
        await freed(*parts)


async def test_a_caller_that_reads_nothing_is_let_go():
    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, limits=SHORT)
        async with stranger(lab_, part) as caller:
            await caller.opened(part)
            for at in range(8):
                await caller.say(pb.Tokens(position=at, ids=[at], sample=True))
            await freed(part)


# -- processes that die ------------------------------------------------------------------------------


@asynccontextmanager
async def process(lab_, start, end):
    """A node in a process of its own, listed like any other."""
    key = EventKey(os.urandom(32))
    child = subprocess.Popen(
        [sys.executable, str(CHILD), key.seed_text(), str(start), str(end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told = json.loads(await anyio.to_thread.run_sync(child.stdout.readline))
        part = Remote(key, told["boot_id"], told["endpoint"], start, end)
        lab_.tracker.lists(part)
        part.process = child
        yield part
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


async def tell_claims(lab_, *parts):
    """Let the trackers of processes list what ours does."""
    claims = [msgspec.to_builtins(claim) for claim in lab_.tracker.claims.values()]
    nodes = [msgspec.to_builtins(node) for node in lab_.tracker.nodes.values()]
    for part in parts:
        part.process.stdin.write(json.dumps({"claims": claims, "nodes": nodes}) + "\n")
        part.process.stdin.flush()
        assert await anyio.to_thread.run_sync(part.process.stdout.readline) == "ready\n"


def facts_of(part):
    """What a process has said so far, as it counts it."""
    part.process.stdin.write("facts\n")
    part.process.stdin.flush()
    return json.loads(part.process.stdout.readline())


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_process_that_dies_or_hangs_certifies_nothing(stage, sent):
    async with lab() as lab_:
        first = await lab_.start(0, 2, limits=SHORT)
        last = await lab_.start(4, LAYERS, limits=SHORT)
        async with process(lab_, 2, 4) as middle:
            await tell_claims(lab_, middle)

            async def lose():
                os.kill(middle.process.pid, sent)
                await anyio.sleep(0.05)

            began = time.monotonic()
            await is_lost(lab_, (first, middle, last), stage, lose)
            assert time.monotonic() - began < 6
            assert last.said.of(ATTESTED) == []
            await freed(first, last)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(3,), (2, 4), (1, 2, 3, 5)], ids=["two", "three", "five"])
async def test_processes_compute_and_attest_one_forward(cuts):
    bounds = (0, *cuts, LAYERS)
    async with lab() as lab_:
        parts = []
        async with AsyncExitStack() as stack:
            for start, end in itertools.pairwise(bounds):
                # each holds a layer more than it computes, so that ranges overlap
                held = min(end + 1, LAYERS)
                parts.append(await stack.enter_async_context(process(lab_, start, held)))
            await tell_claims(lab_, *parts)
            hops = [
                part.hop(start=start, end=end)
                for part, start, end in zip(parts, bounds, bounds[1:], strict=False)
            ]
            async with lab_.open(*hops) as route:
                assert await tokens_of(route, PROMPT, 6) == whole_model(PROMPT, 6)
                done = await route.certify(completed_at_ms=time.time_ns() // 1_000_000)
            assert done.is_complete
            for part in parts:
                told = facts_of(part)
                assert told["attested"] == [canonical(done.evidence).decode()]
                assert told["idle"]
