"""Asking trackers over a real server: answers, sequences, shared load, hostile bytes, outages."""

import json
import logging
import time
from contextlib import asynccontextmanager

import anyio
import pytest
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from bus_kit import client, until, wire
from kit import LAYERS, R, Scenario, boot_of
from meshnet_bus import service as service_module
from meshnet_bus.api import StreamApi
from meshnet_bus.asker import Asker, QueryRefused
from meshnet_bus.client import Unreachable, closing
from meshnet_bus.presence import listen_presence, send_presence
from meshnet_bus.service import QueryService
from meshnet_bus.stream import provision
from meshnet_events import subjects
from meshnet_events.answers import ClockAnswer
from meshnet_events.presence import Presence
from meshnet_events.queries import (
    MAX_ANSWER,
    MAX_QUERY,
    QUERY_NAMES,
    ClaimQuery,
    ClockQuery,
    NodeQuery,
    PlanQuery,
    QueryError,
    RecipeQuery,
    Reply,
)
from meshnet_tracker.api import nats as api_module
from meshnet_tracker.api.nats import TrackerApi
from meshnet_tracker.metrics import TrackerMetrics
from meshnet_tracker.presence import PresenceOverlay, boots_in
from meshnet_tracker.projector import Projector
from meshnet_tracker.views import Views

REALM = "lab"
NOBODY = ClaimQuery(node=Scenario().public("nobody"), shard_id="main")


class Lab:
    """A scenario whose records are in a real stream."""

    def __init__(self, nc):
        self.nc = nc
        self.scenario = Scenario(REALM)
        # the broker stamps real time, and judges reports by it
        self.scenario.now_ms = time.time_ns() // 1_000_000 - 10_000
        self.stored = 0

    async def store(self):
        """Append what was played since; the sequence of the last record."""
        for record in self.scenario.records[self.stored :]:
            await self.nc.request(record.subject, record.body, timeout=10)
            self.stored += 1
        return self.stored

    async def alive(self, nc, *nodes):
        for node in nodes:
            said = Presence(
                boot_id=boot_of(node, self.scenario.boots.get(node, "b1")),
                load=0,
                shards=("main",),
            )
            await send_presence(nc, REALM, self.scenario.public(node), said)


@pytest.fixture
async def lab(nc):
    await provision(nc, REALM)
    return Lab(nc)


class Tracker:
    """A whole tracker but for its HTTP: projector, presence, queries."""

    def __init__(self, nc, projector, tasks, **options):
        self.overlay = PresenceOverlay(boots_in(lambda: projector.state), time.monotonic)
        self.api = TrackerApi(projector, StreamApi(nc, REALM), liveness=self.overlay, **options)
        self.service = QueryService(nc, REALM, self.api.answer)
        self.projector = projector
        self.tasks = tasks

    def answered(self):
        return sum(endpoint.num_requests for endpoint in self.service.stats.values())


@asynccontextmanager
async def tracking(nc, path, *, projects=True, metrics=None, **options):
    async with Views.open(path, REALM) as views, anyio.create_task_group() as tasks:
        projector = Projector(views, nc, on_commit=metrics.count if metrics else None)
        tracker = Tracker(nc, projector, tasks, **options)
        await tasks.start(listen_presence, nc, REALM, tracker.overlay.hear)
        await tasks.start(tracker.service.run)
        if projects:
            tasks.start_soon(projector.run)
            with anyio.fail_after(10):
                await projector.caught_up()
        yield tracker
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def serving(nc, answer, **options):
    async with anyio.create_task_group() as tasks:
        service = QueryService(nc, REALM, answer, **options)
        await tasks.start(service.run)
        yield service
        tasks.cancel_scope.cancel()


async def tell_time(query):
    return Reply(sequence=1, answer=ClockAnswer(7))


async def hears(tracker, lab, *nodes):
    await until(lambda: all(tracker.overlay.is_live(lab.scenario.claim(node)) for node in nodes))


# -- a whole tracker -------------------------------------------------------------------------------


async def test_a_node_asks_everything_and_is_answered(nc, lab, tmp_path):
    lab.scenario.certify("n1@h1[0,14)", "n2@h2[14,28)")
    last = await lab.store()
    async with tracking(nc, tmp_path / "views.db") as tracker:
        await lab.alive(nc, "n1", "n2")
        await hears(tracker, lab, "n1", "n2")
        asker = Asker(nc, REALM)
        n1 = lab.scenario.public("n1")
        claim = await asker.ask(ClaimQuery(node=n1, shard_id="main", min_sequence=last))
        assert (claim.eligible_to_serve, claim.presence) == (True, True)
        node = await asker.ask(NodeQuery(node=n1))
        assert node.head_digest == lab.scenario.heads["n1"].digest
        plan = await asker.ask(PlanQuery(recipe=R.key[:8], purpose="serve"))
        assert [(hop.start, hop.end) for hop in plan.hops] == [(0, 14), (14, LAYERS)]
        assert (await asker.ask(RecipeQuery(recipe=R.key))).status == "certified"
        clock = await asker.ask(ClockQuery())
        assert abs(clock.time_ns - time.time_ns()) < 5_000_000_000
        policy = lab.scenario.state.policy
        assert clock.max_clock_skew_ms == policy.max_clock_skew_ms
        assert clock.max_report_age_ms == policy.max_report_age_ms
        with pytest.raises(QueryRefused) as refused:
            await asker.ask(NOBODY)
        assert refused.value.code == "not-found"


async def test_who_registers_and_sends_presence_is_planned_at_once(nc, lab, tmp_path):
    lab.scenario.register("n1@h1[0,14)")
    await lab.store()
    async with tracking(nc, tmp_path / "views.db"):
        lab.scenario.register("n2@h2[14,28)")
        await lab.alive(nc, "n1", "n2")  # n2's goes ahead of its registration
        last = await lab.store()
        query = PlanQuery(recipe=R.key, purpose="certify", min_sequence=last)
        assert len((await Asker(nc, REALM).ask(query)).hops) == 2


async def test_a_route_leaves_out_who_is_silent(nc, lab, tmp_path):
    lab.scenario.certify("n1@h1[0,14)", "n2@h2[14,28)")
    await lab.store()
    async with tracking(nc, tmp_path / "views.db") as tracker:
        await lab.alive(nc, "n1")
        await hears(tracker, lab, "n1")
        plan = await Asker(nc, REALM).ask(PlanQuery(recipe=R.key, purpose="serve"))
        assert (list(plan.hops), plan.obstacles[0].code) == ([], "range")


async def test_min_sequence_is_waited_for(nc, lab, tmp_path):
    await lab.store()
    async with tracking(nc, tmp_path / "views.db"), anyio.create_task_group() as tasks:
        lab.scenario.register("n1@h1[0,14)")
        last = len(lab.scenario.records)
        n1 = lab.scenario.public("n1")
        heard = []

        async def ask():
            query = ClaimQuery(node=n1, shard_id="main", min_sequence=last)
            heard.append(await Asker(nc, REALM).ask(query))

        tasks.start_soon(ask)
        await anyio.sleep(0.2)
        assert not heard
        await lab.store()
        await until(lambda: heard)
        assert heard[0].registered_sequence == last


async def test_a_sequence_that_does_not_come_is_said_to_be_behind(nc, lab, tmp_path, monkeypatch):
    await lab.store()
    monkeypatch.setattr(api_module, "MAX_WAITING", 1)
    async with tracking(nc, tmp_path / "views.db", wait_s=0.3), anyio.create_task_group() as tasks:
        asker, codes, waited = Asker(nc, REALM), [], []

        async def ask():
            began = time.monotonic()
            with pytest.raises(QueryRefused) as refused:
                await asker.ask(NodeQuery(node=NOBODY.node, min_sequence=2**53 - 1))
            codes.append(refused.value.code)
            waited.append(time.monotonic() - began)

        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await until(lambda: len(codes) == 2)
        assert codes == ["behind", "behind"]
        assert waited[0] < 0.2, "one too many does not wait"
        assert 0.3 <= waited[1] < 2
        await asker.ask(NodeQuery(node=NOBODY.node))


async def test_a_tracker_that_has_not_caught_up_or_faulted_is_unavailable(nc, lab, tmp_path):
    await lab.store()
    asker = Asker(nc, REALM)
    async with tracking(nc, tmp_path / "views.db", projects=False) as tracker:
        with pytest.raises(QueryRefused) as refused:
            await asker.ask(NodeQuery(node=NOBODY.node))
        assert refused.value.code == "unavailable"
        clock = await asker.ask(ClockQuery())
        assert clock.time_ns, "the clock needs no state"
        assert (clock.max_clock_skew_ms, clock.max_report_age_ms) == (None, None), "and tells none"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tracker.projector.run)
            await until(lambda: tracker.projector.is_running)
            await tracker.projector.caught_up()
            await asker.ask(NodeQuery(node=NOBODY.node))
            tasks.cancel_scope.cancel()
        with pytest.raises(QueryRefused, match="does not run"):
            await asker.ask(NodeQuery(node=NOBODY.node))


async def test_a_tracker_that_fell_behind_is_unavailable(nc, lab, tmp_path):
    await lab.store()
    asker = Asker(nc, REALM)
    async with tracking(nc, tmp_path / "views.db") as tracker:
        await asker.ask(NodeQuery(node=NOBODY.node))
        tracker.projector._reader.last_known += api_module.MAX_LAG + 1
        with pytest.raises(QueryRefused, match="10,001 records behind"):
            await asker.ask(NodeQuery(node=NOBODY.node))


async def test_handshakes_are_counted_once_whether_replayed_or_live(nc, lab, tmp_path):
    lab.scenario.register("n1@h1[0,14)")
    lab.scenario.register("n2@h2[14,28)")
    for accepted in (True, True, False):
        lab.scenario.handshake("n1", "n2", accepted=accepted)
    await lab.store()

    def counted(metrics, result):
        reasons = {"accepted": "", "refused": "artifact"}
        labels = {"result": result, "reason": reasons[result]}
        return metrics.registry.get_sample_value("meshnet_handshakes_total", labels)

    first = TrackerMetrics()
    async with tracking(nc, tmp_path / "views.db", metrics=first) as tracker:
        assert (counted(first, "accepted"), counted(first, "refused")) == (2, 1)
        lab.scenario.handshake("n2", "n1", accepted=False, role="responder")
        await tracker.projector.reached(await lab.store())
        assert (counted(first, "accepted"), counted(first, "refused")) == (2, 2)
    again = TrackerMetrics()
    async with tracking(nc, tmp_path / "views.db", metrics=again) as tracker:
        lab.scenario.handshake("n1", "n2")
        await tracker.projector.reached(await lab.store())
        assert (counted(again, "accepted"), counted(again, "refused")) == (1, 0)


async def test_two_trackers_share_the_load_and_one_alone_carries_it(server, nc, lab, tmp_path):
    await lab.store()
    async with closing(await client(server)) as other, tracking(nc, tmp_path / "a.db") as one:
        async with tracking(other, tmp_path / "b.db") as two, closing(await client(server)) as node:
            asker = Asker(node, REALM)
            for _ in range(60):
                await asker.ask(NodeQuery(node=NOBODY.node))
            assert one.answered() + two.answered() == 60
            assert min(one.answered(), two.answered()) > 5
        before = one.answered()
        for _ in range(10):
            await Asker(nc, REALM).ask(NodeQuery(node=NOBODY.node))
        assert one.answered() == before + 10


async def test_queries_and_presence_go_on_after_the_server_restarted(server, nc, lab, tmp_path):
    lab.scenario.register("n1@h1[0,14)")
    await lab.store()
    async with (
        tracking(nc, tmp_path / "views.db") as tracker,
        closing(await client(server)) as node,
    ):
        await server.restart()
        await until(lambda: nc.is_connected and node.is_connected)
        query = ClaimQuery(node=lab.scenario.public("n1"), shard_id="main")
        deadline = time.monotonic() + 10
        while not tracker.overlay.is_live(lab.scenario.claim("n1")):
            assert time.monotonic() < deadline
            await lab.alive(node, "n1")
            await anyio.sleep(0.05)
        answer = await Asker(node, REALM).ask(query)
        assert answer.reasons == ("dark",)


# -- hostile askers --------------------------------------------------------------------------------

BROKEN_HEADERS = [
    b"NATS/1.0\r\nno colon at all\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: \xc3\x28\r\n\r\n",
    b"NATS/1.0\r\nStatus: 503\r\nNats-Service-Error: yes\r\n\r\n",
    b"NATS/1.0 9x9 what\r\n\r\n",
    b"\xff\r\n\r\n",
]

HOSTILE = [
    b"\xff\xfe",
    b"[" * 10_000,
    b'{"x":' + b'{"x":' * 3_000,
    b"{" + b" " * MAX_QUERY + b"}",
    b"\x00" * 60_000,
    b'{"min_sequence":-1}',
    b'{"min_sequence":1e400}',
    b"null",
]


@pytest.mark.parametrize("name", QUERY_NAMES)
async def test_bytes_that_are_no_query_are_answered_as_such(nc, name):
    async with serving(nc, tell_time):
        for body in HOSTILE:
            message = await nc.request(subjects.query(REALM, name), body, timeout=2)
            told = json.loads(message.data)
            assert (told["sequence"], told["error"]["code"]) == (0, "bad-query")
            assert len(message.data) < 1_000
        assert (await Asker(nc, REALM).ask(ClockQuery())).time_ns == 7


@pytest.mark.parametrize("reply", [b"", b"\xff\xfe", b"r\x0bs", b"\x00", b"a..b", b"*", b">", b"."])
async def test_no_reply_subject_ends_the_service(nc, reply):
    async with serving(nc, tell_time):
        await wire(nc, b"mesh.lab.api.clock", b"{}", reply=reply)
        await wire(nc, b"mesh.lab.api.node", b"[", reply=reply)
        await wire(nc, b"$SRV.PING", b"", reply=reply)
        assert (await Asker(nc, REALM).ask(ClockQuery())).time_ns == 7


@pytest.mark.parametrize("headers", BROKEN_HEADERS)
async def test_no_headers_end_the_service_or_change_an_answer(nc, headers):
    heard = []

    async def note(message):
        heard.append(message.data)

    async with serving(nc, tell_time):
        await nc.subscribe("t.reply", cb=note)
        await wire(nc, b"mesh.lab.api.clock", b"{}", headers=headers, reply=b"t.reply")
        await until(lambda: heard)
        assert json.loads(heard[0]) == {"sequence": 1, "answer": {"time_ns": 7}}


async def everything_a_service_is_asked_on(nc):
    """The subjects of every query, and of NATS's micro protocol in each of its spellings."""
    told = ServicePing.from_dict(json.loads((await nc.request("$SRV.PING", timeout=2)).data))
    return [subjects.query(REALM, name) for name in QUERY_NAMES] + [
        f"$SRV.{verb}{whom}"
        for verb in ("PING", "INFO", "STATS")
        for whom in ("", f".{told.name}", f".{told.name}.{told.id}")
    ]


@pytest.mark.parametrize("aim", ["mesh.lab.evt.U", "mesh.lab.presence.U", "$JS.API.STREAM.LIST"])
async def test_no_answer_goes_where_it_would_be_taken_for_the_trackers_word(nc, aim):
    heard, harmless = [], []

    async def note(message):
        heard.append(message.data)

    async def note_harmless(message):
        harmless.append(message.data)

    async with serving(nc, tell_time):
        asked = await everything_a_service_is_asked_on(nc)
        await nc.subscribe(aim, cb=note)
        await nc.subscribe("t.harmless", cb=note_harmless)
        for subject in asked:
            await wire(nc, subject.encode(), b"{}", reply=aim.encode())
            await wire(nc, subject.encode(), b"{}", reply=b"t.harmless")
        await until(lambda: len(harmless) == len(asked))
        await nc.flush()
        assert heard == []


async def test_no_answer_repeats_the_headers_of_the_question(nc):
    headers = {"Nats-Expected-Last-Sequence": "0", "X": "y"}
    async with serving(nc, tell_time):
        for subject in await everything_a_service_is_asked_on(nc):
            answer = await nc.request(subject, b"{}", timeout=2, headers=headers)
            assert answer.data
            assert not answer.headers


async def test_a_handler_that_raises_is_unavailable_and_ends_nothing(nc, caplog):
    async def answer(query):
        if query == ClockQuery():
            return await tell_time(query)
        raise RuntimeError("a fault of ours, with its secrets")

    async with serving(nc, answer, at_once=1):
        asker = Asker(nc, REALM)
        with caplog.at_level(logging.ERROR), pytest.raises(QueryRefused) as refused:
            await asker.ask(RecipeQuery(recipe=R.key))
        assert refused.value.code == "unavailable"
        assert "secrets" not in refused.value.detail
        assert "with its secrets" in caplog.text
        assert (await asker.ask(ClockQuery())).time_ns == 7


async def test_an_answer_that_is_too_large_is_unavailable(nc):
    async def answer(query):
        return Reply(sequence=5, error=QueryError("behind", "x" * MAX_ANSWER))

    async with serving(nc, answer):
        with pytest.raises(QueryRefused, match="unavailable: the answer has 63,"):
            await Asker(nc, REALM).ask(ClockQuery())


async def test_queries_past_the_bound_are_unavailable_at_once(nc):
    release, at_once = anyio.Event(), []

    async def answer(query):
        at_once.append(query)
        await release.wait()
        return await tell_time(query)

    async with serving(nc, answer, at_once=2, waiting=3), anyio.create_task_group() as tasks:
        codes = []

        async def ask():
            try:
                codes.append((await Asker(nc, REALM).ask(ClockQuery())).time_ns)
            except QueryRefused as refused:
                codes.append(refused.code)

        for _ in range(12):
            tasks.start_soon(ask)
        await until(lambda: len(codes) == 7)
        assert codes == ["unavailable"] * 7
        assert len(at_once) == 2
        release.set()
        await until(lambda: len(codes) == 12)
        assert codes[7:] == [7] * 5


async def test_a_connection_that_closed_before_the_answer_ends_nothing(server, nc):
    asked, release, sent = anyio.Event(), anyio.Event(), []

    async def answer(query):
        asked.set()
        await release.wait()
        sent.append(query)
        return await tell_time(query)

    async with closing(await client(server)) as tracker, serving(tracker, answer):
        await nc.publish(subjects.query(REALM, "clock"), b"{}", reply="t.reply")
        await asked.wait()
        await tracker.close()
        release.set()
        await until(lambda: sent)
        await anyio.sleep(0.05)  # a service that ended would cancel this


async def test_one_that_waits_holds_up_no_other(nc):
    release = anyio.Event()

    async def answer(query):
        if query.min_sequence:
            await release.wait()
        return await tell_time(query)

    async with serving(nc, answer), anyio.create_task_group() as tasks:
        tasks.start_soon(Asker(nc, REALM).ask, ClockQuery(min_sequence=9))
        with anyio.fail_after(2):
            assert (await Asker(nc, REALM).ask(ClockQuery())).time_ns == 7
        release.set()


# -- asking ----------------------------------------------------------------------------------------


async def test_nobody_there_is_unreachable_at_once(nc):
    began = time.monotonic()
    with pytest.raises(Unreachable, match="no tracker of lab answered"):
        await Asker(nc, REALM).ask(ClockQuery())
    assert time.monotonic() - began < 1


async def test_a_tracker_that_says_nothing_is_not_waited_for(nc):
    async def answer(query):
        await anyio.sleep_forever()

    async with serving(nc, answer):
        with pytest.raises(Unreachable, match=r"within 0\.2 s"):
            await Asker(nc, REALM, timeout_s=0.2).ask(ClockQuery())


async def test_a_server_that_is_gone_is_unreachable_and_the_question_is_not_kept(server, nc):
    server.kill()
    await until(lambda: nc.outages)
    with pytest.raises(Unreachable, match="not connected"):
        await Asker(nc, REALM).ask(ClockQuery())
    with pytest.raises(Unreachable, match="not connected"):
        await send_presence(
            nc, REALM, NOBODY.node, Presence(boot_id=boot_of("a", "b"), load=0, shards=())
        )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Input data was truncated"),
        (b"\xff", "JSON is malformed"),
        (b'{"sequence":1,"answer":{"time_ns":"7"}}', "Expected `int`, got `str`"),
        (b'{"sequence":1,"x":' + b"[" * 50_000, "it nests too deep"),
        (b'{"sequence":1,"answer":{"time_ns":7}}' + b" " * MAX_ANSWER, "more than 63,488 bytes"),
    ],
)
async def test_what_is_no_answer_counts_as_none(nc, body, why):
    async def lie(message):
        await message.respond(body)

    await nc.subscribe(subjects.query(REALM, "clock"), cb=lie)
    with pytest.raises(Unreachable, match=f"no answer: {why}"):
        await Asker(nc, REALM).ask(ClockQuery())


# -- as a micro service ----------------------------------------------------------------------------


async def test_it_says_what_it_is_in_the_words_of_nats_micro(nc):
    async with serving(nc, tell_time):
        await Asker(nc, REALM).ask(ClockQuery())
        await nc.request(subjects.query(REALM, "clock"), b"[", timeout=2)

        async def ask(subject):
            return json.loads((await nc.request(subject, timeout=2)).data)

        ping = ServicePing.from_dict(await ask("$SRV.PING"))
        assert (ping.name, ping.metadata) == ("meshnet-tracker", {"realm": REALM})
        info = ServiceInfo.from_dict(await ask(f"$SRV.INFO.{ping.name}"))
        assert {one.subject for one in info.endpoints} == {
            subjects.query(REALM, name) for name in QUERY_NAMES
        }
        stats = ServiceStats.from_dict(await ask(f"$SRV.STATS.{ping.name}.{ping.id}"))
        assert stats.id == ping.id
        clock = next(one for one in stats.endpoints if one.name == "clock")
        assert (clock.num_requests, clock.num_errors, clock.last_error) == (2, 1, "bad-query")
        assert clock.queue_group == service_module.QUEUE_GROUP
        assert clock.average_processing_time > 0


async def test_a_service_that_was_stopped_takes_no_more_questions(nc):
    async with serving(nc, tell_time):
        await Asker(nc, REALM).ask(ClockQuery())
    with pytest.raises(Unreachable):
        await Asker(nc, REALM, timeout_s=1).ask(ClockQuery())


# -- presence --------------------------------------------------------------------------------------


async def test_only_presence_in_the_name_of_a_key_is_heard(nc):
    heard = []
    issuer = NOBODY.node
    said = Presence(boot_id=boot_of("n", "b1"), load=1, shards=("main",))
    async with anyio.create_task_group() as tasks:
        await tasks.start(listen_presence, nc, REALM, lambda who, what: heard.append((who, what)))
        body = json.dumps({"boot_id": said.boot_id, "load": 1, "shards": ["main"]}).encode()
        for subject in (
            b"U" * 56,
            issuer[:-1].encode(),
            b"\xff\xfe",
            b"*",
            issuer.lower().encode(),
        ):
            await wire(nc, b"mesh.lab.presence." + subject, body)
        for bad in (b"", b"\xff", b"[" * 4_000, body[:-1], b" " * 5_000 + body):
            await wire(nc, f"mesh.lab.presence.{issuer}".encode(), bad)
        for headers in BROKEN_HEADERS:
            await wire(nc, b"mesh.lab.presence.x", body, headers=headers, reply=b"\xff")
        await send_presence(nc, REALM, issuer, said)
        await until(lambda: heard)
        assert heard == [(issuer, said)]
        tasks.cancel_scope.cancel()
