"""A node that lost its place in the chain goes on by an operator's word, which a tracker brings it.

Everything is real: server, stream, projector, queries, outbox. What counts is what the fold says of
the node's next event.
"""

import time
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from bus_kit import REALM, alongside, until
from kit import Scenario, key_of
from meshnet_bus.api import StreamApi
from meshnet_bus.asker import Asker, ask_head
from meshnet_bus.client import Unreachable
from meshnet_bus.outbox import KEEP_ACKNOWLEDGED_MS, Outbox
from meshnet_bus.place import KeyInUse, PlaceLost
from meshnet_bus.publisher import Publisher
from meshnet_bus.service import QueryService
from meshnet_bus.stream import provision
from meshnet_events.answers import HeadAnswer
from meshnet_events.envelope import MAX_BODY, ChainHead, sign_event
from meshnet_events.facts import NodeEnrolled
from meshnet_events.queries import HeadQuery, NodeQuery, QueryError, Reply
from meshnet_tracker.api.nats import TrackerApi
from meshnet_tracker.projector import Projector
from meshnet_tracker.views import Views
from outbox_kit import bodies, records, running

NODE = key_of("n1")
OPERATOR = key_of("operator")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outbox.db"


@pytest.fixture
async def operator(nc, realm):
    """The realm's operator, who has created it and enrolled the node."""
    operator = Publisher(nc, realm, OPERATOR)
    await begin(operator)
    return operator


async def begin(operator):
    await operator.publish(Scenario(REALM).creation())
    await operator.publish(enrolment())


def enrolment(chain_from=None, *, node=NODE):
    return NodeEnrolled(chain_from=chain_from, group="g", label="first", node=node.public)


def registration(boot):
    lab = Scenario(REALM)
    lab.now_ms = time.time_ns() // 1_000_000 - 10_000  # the broker judges reports by real time
    return lab.registration("n1@h1[0,14)", boot=boot)


def asking(nc):
    """What `serve` opens its outbox with."""
    return {
        "key": NODE,
        "ask_head": ask_head(Asker(nc, REALM), NODE.public),
        "operators": (OPERATOR.public,),
    }


async def publish(path, nc, *facts, **options):
    """Hand facts and have them stored; the sequence of the last."""
    async with running(path, nc, **{"key": NODE, **options}) as outbox:
        handed = [await outbox.hand(fact) for fact in facts]
        with anyio.fail_after(10):
            await outbox.drained()
            return (await outbox.stored(handed[-1])).sequence


@asynccontextmanager
async def tracking(nc, views_path):
    """A tracker that has caught up; its projector."""
    async with Views.open(views_path, REALM) as views, alongside() as tasks:
        projector = Projector(views, nc)
        api = TrackerApi(projector, StreamApi(nc, REALM))
        await tasks.start(QueryService(nc, REALM, api.answer).run)
        tasks.start_soon(projector.run)
        with anyio.fail_after(10):
            await projector.caught_up()
        yield projector


@asynccontextmanager
async def lying(nc, body):
    """A tracker that gives `body` for the head of every chain."""

    async def answer(query):
        assert isinstance(query, HeadQuery)
        head = HeadAnswer(body=msgspec.Raw(body), head_sequence=3, node=query.node)
        return Reply(sequence=10**6, answer=head)

    async with alongside() as tasks:
        await tasks.start(QueryService(nc, REALM, answer).run)
        yield


async def test_a_lost_outbox_goes_on_where_an_operator_let_the_chain_start_anew(
    nc, realm, operator, path, tmp_path
):
    await publish(path, nc, registration("b1"), registration("b2"))
    path.unlink()
    await operator.publish(enrolment(chain_from=50))
    async with tracking(nc, tmp_path / "views.db") as projector:
        before = projector.state.counts["applied"]
        last = await publish(path, nc, registration("b3"), **asking(nc))
        with anyio.fail_after(5):
            await projector.reached(last)
        chain = projector.state.chain_of(NODE.public)
        assert (chain.issuerseq, chain.sequence) == (50, last)
        assert projector.state.counts["applied"] == before + 1
        assert projector.state.claim(NODE.public, "main").sequence == last
        # and again, from the file and from its own last record
        for _ in range(2):
            last = await publish(path, nc, registration("b4"), **asking(nc))
            path.unlink()
        with anyio.fail_after(5):
            await projector.reached(last)
        assert projector.state.chain_of(NODE.public).issuerseq == 52
        assert set(projector.state.counts) == {"applied"}


@pytest.mark.parametrize("pending", [0, 1])
async def test_the_way_on_that_a_lost_place_names_works(
    nc, realm, operator, path, tmp_path, pending
):
    await publish(path, nc, *(registration(f"b{n}") for n in range(3)))
    later_ms = time.time_ns() // 1_000_000 + KEEP_ACKNOWLEDGED_MS + 60_000
    async with running(path, nc, key=NODE, clock_ms=lambda: later_ms) as outbox:
        with anyio.fail_after(5):
            await outbox.drained()
        await until(lambda: outbox._prune_at)
    if pending:
        async with Outbox.open(path, nc, realm, NODE) as outbox:
            await outbox.hand(registration("b9"))
    await nc.jetstream().delete_stream(f"MESH_{realm}")
    await provision(nc, realm)
    await begin(Publisher(nc, realm, OPERATOR))
    chain_from = 4 + pending
    advice = rf"chain_from {chain_from} or more, move .*outbox\.db\* away .* tracker answers, with"
    with pytest.raises(PlaceLost, match=advice):
        async with Outbox.open(path, nc, realm, NODE):
            pass
    await Publisher(nc, realm, OPERATOR).publish(enrolment(chain_from))
    async with tracking(nc, tmp_path / "views.db") as projector:
        if pending:
            # what is pending would never count, and is given up by nobody but its owner
            with pytest.raises(KeyInUse, match=r"an operator let its chain .* move .*outbox\.db\*"):
                async with Outbox.open(path, nc, realm, **asking(nc)):
                    pass
        path.unlink()
        last = await publish(path, nc, registration("b10"), **asking(nc))
        with anyio.fail_after(5):
            await projector.reached(last)
        assert projector.state.claim(NODE.public, "main").sequence == last
        assert projector.state.chain_of(NODE.public).issuerseq == chain_from


async def test_a_lying_tracker_changes_nothing(nc, realm, operator, path, tmp_path):
    await publish(path, nc, registration("b1"), registration("b2"))
    own = await bodies(nc, NODE.public)
    path.unlink()
    stranger, now = key_of("stranger"), {"time_ms": 1_790_000_000_000, "chance": bytes(10)}
    signed = {
        "by a stranger": sign_event(
            enrolment(50), key=stranger, realm=realm, after=ChainHead(), **now
        ),
        "of another node": sign_event(
            enrolment(50, node=stranger), key=OPERATOR, realm=realm, after=ChainHead(7), **now
        ),
        "that is behind": sign_event(
            enrolment(2), key=OPERATOR, realm=realm, after=ChainHead(7), **now
        ),
        "without a place": sign_event(
            enrolment(), key=OPERATOR, realm=realm, after=ChainHead(7), **now
        ),
    }
    lies = {
        b"{}": "none that this key signed",
        b'{"event":{"issuer":"*"}}': "none that this key signed",
        own[0]: "ends at event 1, and the stream holds event 2",
        own[1][:-4] + b'AA"}': "none that this key signed",
        signed["by a stranger"].body: f"by {stranger.public}, which is no operator's key",
        signed["of another node"].body: "none that this key signed",
        signed["that is behind"].body: "ends at event 1, and the stream holds event 2",
        signed["without a place"].body: "none that this key signed",
    }
    last = (await records(nc))[-1].sequence
    for body, why in lies.items():
        async with lying(nc, body):
            with pytest.raises(PlaceLost, match=f"{why}.* chain_from 3 or more"):
                async with Outbox.open(path, nc, realm, **asking(nc)):
                    pass
    assert (await records(nc))[-1].sequence == last
    async with tracking(nc, tmp_path / "views.db") as projector:
        last = await publish(path, nc, registration("b3"), **asking(nc))
        with anyio.fail_after(5):
            await projector.reached(last)
        assert projector.state.chain_of(NODE.public).issuerseq == 3
        assert set(projector.state.counts) == {"applied"}


async def test_the_message_at_the_head_is_told_byte_for_byte(nc, realm, operator, path, tmp_path):
    await operator.publish(enrolment(9))
    async with tracking(nc, tmp_path / "views.db"):
        asker = Asker(nc, realm)
        head = await asker.ask(HeadQuery(node=NODE.public))
        (*_, record) = await records(nc)
        assert (bytes(head.body), head.head_sequence) == (record.body, record.sequence)
        identity = msgspec.Raw(b'{"x":"%b"}' % (b"y" * 60_050))
        largest = msgspec.structs.replace(registration("b1"), identity=identity)
        last = await publish(path, nc, largest, **asking(nc))
        head = await asker.ask(HeadQuery(node=NODE.public, min_sequence=last))
        assert bytes(head.body) == (await records(nc))[-1].body
        assert MAX_BODY - 200 < len(bytes(head.body)) <= MAX_BODY
        assert head.head_sequence == last
        known = await asker.ask(NodeQuery(node=NODE.public))
        assert known.head_sequence == last
        nobody = key_of("nobody").public
        assert await ask_head(asker, nobody)(0) is None
        assert (await asker.ask(NodeQuery(node=nobody))).head_sequence == 0


async def test_a_tracker_that_does_not_answer_for_the_head_is_unreachable(
    nc, realm, operator, path, monkeypatch, tmp_path
):
    ask = ask_head(Asker(nc, realm), OPERATOR.public)
    with pytest.raises(Unreachable, match="no tracker of demo answered"):
        await ask(1)

    async def refuse(query):
        assert query == HeadQuery(node=OPERATOR.public, min_sequence=1)
        return Reply(sequence=1, error=QueryError("behind", "still reading"))

    async with alongside() as tasks:
        await tasks.start(QueryService(nc, realm, refuse).run)
        with pytest.raises(Unreachable, match=r"where the chain of U.* stands: behind: still"):
            await ask(1)
    async with tracking(nc, tmp_path / "views.db"):

        async def another(api, sequence):
            return (await api.direct_record(1)) if sequence else None

        monkeypatch.setattr(StreamApi, "leader_record", another)
        with pytest.raises(Unreachable, match="unavailable: the stream holds no more at 2"):
            await ask(2)
