"""A node at work, from registration to withdrawal: a real server, outbox, tracker and sessions."""

import logging
import os
import re
import resource
import threading
import time
import uuid
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import msgspec
import pytest

from bus_kit import alongside, client, until
from cli_kit import free_port
from meshnet_bus.api import StreamApi
from meshnet_bus.asker import Asker
from meshnet_bus.client import closing
from meshnet_bus.outbox import Outbox
from meshnet_bus.presence import listen_presence
from meshnet_bus.publisher import Publisher
from meshnet_bus.reader import Reader
from meshnet_bus.stream import create_realm, read_state
from meshnet_cli.tracking import serve_queries
from meshnet_events import facts
from meshnet_events.answers import ClockAnswer
from meshnet_events.envelope import ChainHead, sign_event
from meshnet_events.gate import Gate
from meshnet_events.keys import EventKey
from meshnet_events.queries import ClaimQuery
from meshnet_events.screened import Event
from meshnet_node import handshake
from meshnet_node import serve as serve_module
from meshnet_node.admission import CapabilityAdmissionError
from meshnet_node.capability import CapabilityContext, ShardSelection
from meshnet_node.directory import NodeDirectory
from meshnet_node.registration import Offer, registration
from meshnet_node.serve import BootIsOver, LoadedOffer, NotAdmitted, ServeSettings, serve_node
from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.node import Limits
from meshnet_node.shard_facts import ShardFacts
from meshnet_node.testing import SyntheticBackend, passing_validator
from meshnet_tracker.api.nats import TrackerApi
from meshnet_tracker.projector import Projector
from meshnet_tracker.views import Views
from session_kit import (
    ARTIFACT,
    LAYERS,
    REALM,
    RECIPE,
    SHOOK_HANDS,
    Remote,
    ToyShard,
    freed,
    lab,
    served,
    tokens_of,
    whole_model,
)

OPERATOR = EventKey(bytes(31) + b"o")
POLICY = msgspec.structs.replace(facts.DEFAULT_POLICY, accept_declared_hosts=True)
OTHER = msgspec.structs.replace(RECIPE, kv_layout="padded-584")
PATIENCE_S = 10


def host_of(key):
    return facts.Host(id=key.public.lower()[:1].encode().hex() * 32, source="declared")


def offer(start=0, end=LAYERS, *, age_s=0):
    """Layers of the toy, and a proof of them."""
    context = CapabilityContext(
        backend=SyntheticBackend("toy", synthetic=False),
        selection=ShardSelection(ARTIFACT, start, end),
        recipe=RECIPE,
        manifest=None,
        device="cpu",
    )
    report = passing_validator(validated_at=time.time() - age_s)(context)
    return Offer("main", context.identity, report, "cpu")


class AtWork:
    """A node that serves, and what it tells its owner. One run of it is one boot."""

    def __init__(self, server, directory, key, *, layers=(0, LAYERS), others=(), **settings):
        self.key, self.directory = key, directory
        self.loaded = ToyShard(*layers)
        self.notices = []
        self.stop, self.over, self.scope = anyio.Event(), anyio.Event(), anyio.CancelScope()
        told = ShardFacts.of(self.loaded)
        self.shards = [LoadedOffer(offer(*layers), self.loaded, told)]
        for name in others:
            another = msgspec.structs.replace(offer(*layers), shard_id=name)
            self.shards.append(LoadedOffer(another, ToyShard(*layers), told))
        self.settings = ServeSettings(
            realm=REALM,
            server=server.url,
            directory=directory,
            endpoint=f"grpc://127.0.0.1:{free_port()}",
            host=host_of(key),
            ask_every_s=0.1,
            **settings,
        )

    async def run(self):
        """Serve until it is told to stop, or killed: then nothing more is said."""
        with self.scope:
            try:
                await serve_node(
                    self.settings,
                    self.key,
                    self.shards,
                    stop=self.stop.wait,
                    tell=self.notices.append,
                )
            finally:
                self.over.set()

    async def told(self, kind, containing=""):
        """Wait until it told this."""

        def found():
            return [one for one in self.notices if one.kind == kind and containing in one.text]

        await until(found, PATIENCE_S)
        return found()[0]

    async def ended(self):
        with anyio.fail_after(PATIENCE_S):
            await self.over.wait()

    async def stopped(self):
        self.stop.set()
        await self.ended()

    @property
    def boot_id(self):
        return self.directory.last_boot()

    def as_remote(self):
        """As a driver knows it."""
        layers = (self.loaded.start, self.loaded.end)
        return Remote(self.key, self.boot_id, self.settings.endpoint, *layers)


class Tracker:
    """A tracker whose commits can be held back."""

    def __init__(self, nc, views):
        self._goes_on = anyio.Event()
        self._goes_on.set()
        self._commit = views.commit
        views.commit = self._committed
        self.projector = Projector(views, nc, operator=OPERATOR.public)

    async def _committed(self, *stated, **named):
        await self._goes_on.wait()
        await self._commit(*stated, **named)

    async def caught_up(self):
        with anyio.fail_after(PATIENCE_S):
            await self.projector.caught_up()

    def hold(self):
        self._goes_on = anyio.Event()

    def go_on(self):
        self._goes_on.set()


class World:
    """A realm: its operator, its tracker, what is said in it, and nodes that serve."""

    def __init__(self, server, nc, folder):
        self.server, self.nc, self._folder = server, nc, folder
        self.asker = Asker(nc, REALM)
        self._operator = Publisher(nc, REALM, OPERATOR)

    async def create(self):
        created = facts.RealmCreated(operators=(OPERATOR.public,), policy=POLICY, realm=REALM)
        now_ms = time.time_ns() // 1_000_000
        first = sign_event(
            created, key=OPERATOR, realm=REALM, after=ChainHead(), time_ms=now_ms, chance=bytes(10)
        )
        await create_realm(self.nc, REALM, first, issuer=OPERATOR.public)

    @asynccontextmanager
    async def tracker(self):
        path = self._folder / "views.db"
        async with (
            closing(await client(self.server)) as nc,
            Views.open(path, REALM) as views,
            alongside() as tasks,
        ):
            tracker = Tracker(nc, views)
            tasks.start_soon(tracker.projector.run)
            await tracker.caught_up()
            await serve_queries(tasks, tracker.projector, nc, REALM)
            yield tracker
            tracker.go_on()

    async def says(self, fact):
        """The operator states a fact."""
        return (await self._operator.publish(fact)).sequence

    async def enrolled(self, label="ada"):
        key = EventKey(os.urandom(32))
        enrolment = facts.NodeEnrolled(chain_from=None, group="", label=label, node=key.public)
        await self.says(enrolment)
        return key

    def node(self, key, **how):
        directory = NodeDirectory(self._folder / key.public[:12])
        directory.path.mkdir(exist_ok=True)
        return AtWork(self.server, directory, key, **how)

    @asynccontextmanager
    async def serving(self, key, **how):
        """A node at work; it is told to stop at the end."""
        async with alongside() as tasks:
            node = self.node(key, **how)
            tasks.start_soon(node.run)
            yield node
            await node.stopped()

    async def has_served(self, key):
        """A boot that registered and was then killed: its claim is still live."""
        async with alongside() as tasks:
            node = self.node(key)
            tasks.start_soon(node.run)
            await node.told("verdict")
            node.scope.cancel()
            await node.ended()
        return node

    async def claim(self, node):
        last = (await read_state(StreamApi(self.nc, REALM))).last_sequence
        query = ClaimQuery(node=node.key.public, shard_id="main", min_sequence=last)
        return await self.asker.ask(query)

    async def said_by(self, key):
        """The facts of an issuer in the log, in order."""
        last = (await read_state(StreamApi(self.nc, REALM))).last_sequence
        gate, found = Gate(REALM), []
        async with Reader(self.nc, REALM, until=last) as reader:
            async for batch in reader.batches():
                for record in batch:
                    event = gate.screen(record.body, record.subject).verified()
                    if isinstance(event, Event) and event.issuer == key.public:
                        found.append(event.data)
        return found

    async def kinds_said_by(self, key):
        return [fact.NAME for fact in await self.said_by(key)]


@pytest.fixture
async def world(server, nc, tmp_path):
    world = World(server, nc, tmp_path)
    await world.create()
    return world


# -- a life in good order ----------------------------------------------------------------------------


async def test_a_node_registers_is_alive_tells_the_verdict_computes_and_withdraws(world):
    key, user = await world.enrolled(), await world.enrolled("a user")
    async with world.tracker():
        await world.has_served(key)
        async with world.serving(key) as node:
            verdict = await node.told("verdict")
            assert [one.kind for one in node.notices] == ["listening", "registered", "verdict"]
            assert "which is dark: may certify (dark)" in verdict.text
            assert (verdict.claim.status, verdict.claim.boot_id) == ("live", node.boot_id)
            assert verdict.claim.presence, "it was heard before the verdict was asked for"
            async with lab() as lab_:
                hop = node.as_remote().hop()
                async with lab_.open(hop, caller=lab_.caller(key=user)) as route:
                    assert await tokens_of(route, (3, 14), 3) == whole_model((3, 14), 3)
        assert [one.kind for one in node.notices][-1] == "withdrawn"
        claim = await world.claim(node)
        assert (claim.status, claim.boot_id) == ("withdrawn", node.boot_id)
    said = await world.kinds_said_by(key)
    assert said == ["shard.registered", "shard.registered", "shard.withdrawn"]
    assert node.loaded.open_slots == 0
    assert node.loaded.faults == []


async def test_presence_is_sent_again_and_again_for_the_boot_that_runs(world, nc, monkeypatch):
    monkeypatch.setattr(serve_module, "SEND_EVERY_S", 0.1)
    key = await world.enrolled()
    heard = []
    async with world.tracker(), alongside() as tasks:
        await tasks.start(
            listen_presence,
            nc,
            REALM,
            lambda who, said: heard.append((who, said, time.monotonic())),
        )
        async with world.serving(key) as node:
            await node.told("verdict")
            began = time.monotonic()
            await until(lambda: len([at for *_, at in heard if at > began]) >= 3)
        assert {who for who, *_ in heard} == {key.public}
        assert {(said.boot_id, said.shards) for _, said, _ in heard} == {(node.boot_id, ("main",))}
        sent = len(heard)
        await anyio.sleep(0.3)
        assert len(heard) == sent, "who has withdrawn says no more that it is alive"


# -- told to stop, or killed, before it is registered --------------------------------------------------


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(serve_module, "_LEAVE_TIMEOUT_S", 1.0)


@asynccontextmanager
async def registering_at_a_silent_server(world, key):
    """A node whose server stops to answer just before it is told of the registration."""
    hand = Outbox.hand

    async def hand_when_it_is_silent(outbox, fact):
        if isinstance(fact, facts.ShardRegistered):
            world.server.pause()
        return await hand(outbox, fact)

    async with alongside() as tasks:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outbox, "hand", hand_when_it_is_silent)
            node = world.node(key)
            tasks.start_soon(node.run)
            try:
                await until(node.directory.boot.exists)
                await anyio.sleep(0.2)
                assert [one.kind for one in node.notices] == ["listening"]
                yield node
            finally:
                world.server.resume()


async def test_a_stop_while_it_registers_is_heard_and_what_was_said_is_taken_back(world, hasty):
    key = await world.enrolled()
    async with registering_at_a_silent_server(world, key) as node:
        node.stop.set()
        world.server.resume()
        await node.ended()
    assert node.notices[-1].kind == "withdrawn"
    assert await world.kinds_said_by(key) == ["shard.registered", "shard.withdrawn"]


async def test_a_stop_while_nothing_is_acknowledged_ends_soon_and_the_next_boot_says_the_rest(
    world, hasty
):
    key = await world.enrolled()
    async with registering_at_a_silent_server(world, key) as node:
        began = time.monotonic()
        await node.stopped()
        assert time.monotonic() - began < 5
    assert node.notices[-1].kind == "trouble"
    assert re.search(r"outbox\.db holds 2 unsent", node.notices[-1].text)
    earlier = node.boot_id
    async with world.tracker(), world.serving(key) as node:
        assert (await node.told("verdict")).claim.status == "live"
        said = await world.said_by(key)
    assert [(fact.NAME, fact.boot_id) for fact in said] == [
        ("shard.registered", earlier),
        ("shard.withdrawn", earlier),
        ("shard.registered", node.boot_id),
    ]


# -- a tracker that knows less than we do --------------------------------------------------------------


async def test_an_earlier_boots_claim_ends_no_node_whose_registration_is_still_pending(
    world, monkeypatch
):
    key = await world.enrolled()
    send, may_send = Outbox.run, anyio.Event()

    async def held(outbox):
        await may_send.wait()
        await send(outbox)

    async with world.tracker():
        earlier = await world.has_served(key)
        monkeypatch.setattr(Outbox, "run", held)
        async with world.serving(key) as node:
            await until(node.directory.boot.exists)
            claim = await world.claim(node)
            assert (claim.status, claim.registered_sequence) == ("live", 3)
            await anyio.sleep(5 * node.settings.ask_every_s)
            assert not node.over.is_set()
            assert [one.kind for one in node.notices] == ["listening"]
            may_send.set()
            verdict = await node.told("verdict")
            assert verdict.claim.boot_id == node.boot_id != claim.boot_id
    assert earlier.notices[-1].kind == "verdict"


async def test_a_tracker_that_lags_ends_no_node_and_its_verdict_comes_when_it_has_caught_up(
    world, monkeypatch
):
    # a tracker folds one record more than it has committed, and waits a moment for what it is asked of
    monkeypatch.setattr("meshnet_tracker.projector.MAX_AHEAD", 1)
    monkeypatch.setitem(TrackerApi.__init__.__kwdefaults__, "wait_s", 0.2)
    key = await world.enrolled()
    async with world.tracker() as tracker:
        await world.has_served(key)
        tracker.hold()
        await world.enrolled("the last one that it hears of")
        async with world.serving(key) as node:
            await node.told("registered")
            stale = await world.asker.ask(ClaimQuery(node=key.public, shard_id="main"))
            assert stale.boot_id != node.boot_id
            assert "behind" in (await node.told("trouble")).text
            await anyio.sleep(5 * node.settings.ask_every_s)
            assert not node.over.is_set()
            tracker.go_on()
            assert (await node.told("verdict")).claim.boot_id == node.boot_id


async def test_a_node_without_any_tracker_serves_and_says_that_nobody_tells_the_verdict(world):
    key = await world.enrolled()
    async with world.serving(key) as node:
        assert "no tracker says" in (await node.told("trouble")).text
        async with world.tracker():
            assert (await node.told("verdict")).claim.boot_id == node.boot_id
            kinds = [one.kind for one in node.notices]
            assert kinds == ["listening", "registered", "trouble", "verdict"]


# -- a backend that does not come back -----------------------------------------------------------------


class Hanging:
    """A backend's call that takes until it is let go."""

    def __init__(self):
        self.began, self.go_on = threading.Event(), threading.Event()

    def __call__(self, _slot, _rows):
        self.began.set()
        assert self.go_on.wait(30)


@asynccontextmanager
async def in_a_call(node, user):
    """A session whose forward does not return until the call is let go; what is being computed."""
    hanging = node.loaded.twist = Hanging()
    done = []
    async with lab() as lab_, alongside() as tasks:

        async def compute():
            caller = lab_.caller(key=user)
            with suppress(SessionFailed):
                async with lab_.open(node.as_remote().hop(), caller=caller) as route:
                    done.extend(await tokens_of(route, (3, 14), 1))

        tasks.start_soon(compute)
        await until(hanging.began.is_set)
        try:
            yield hanging, done
        finally:
            hanging.go_on.set()


@pytest.mark.parametrize("others", [(), ("other",)])
async def test_a_shard_whose_backend_hangs_is_offered_to_nobody_until_it_returns(
    world, nc, monkeypatch, others
):
    monkeypatch.setattr(serve_module, "SEND_EVERY_S", 0.05)
    key, user = await world.enrolled(), await world.enrolled("a user")
    heard = []
    async with world.tracker(), alongside() as tasks:
        await tasks.start(listen_presence, nc, REALM, lambda _, said: heard.append(said.shards))
        quick = Limits(step_timeout_s=0.3)
        async with world.serving(key, limits=quick, others=others) as node:
            await node.told("verdict")
            await until(lambda: heard[-1:] == [("main", *others)])
            async with in_a_call(node, user) as (hanging, done):
                await until(lambda: heard[-1] == others)
                assert "no route is to use this shard" in (await node.told("trouble", "main")).text
                assert "not-live" in (await node.told("verdict", "not-live")).claim.reasons
                async with lab() as lab_:
                    with pytest.raises(
                        SessionFailed, match="unavailable: the backend does not return"
                    ):
                        async with lab_.open(node.as_remote().hop(), caller=lab_.caller(key=user)):
                            pass
                hanging.go_on.set()
                await until(lambda: heard[-1] == ("main", *others))
                await until(lambda: done == whole_model((3, 14), 1))
            told = [one.kind for one in node.notices if one.kind in {"trouble", "answering"}]
            assert told == ["trouble", "answering"], "once each way"
    assert node.loaded.faults == []


@pytest.mark.parametrize("how", ["told to stop", "cancelled"])
async def test_a_node_whose_backend_hangs_ends_without_it_and_says_so_last(world, monkeypatch, how):
    monkeypatch.setattr("meshnet_node.session.responder.CALLS_TIMEOUT_S", 0.3)
    key, user = await world.enrolled(), await world.enrolled("a user")
    async with world.tracker(), alongside() as tasks:
        node = world.node(key, others=("other",))
        tasks.start_soon(node.run)
        await node.told("verdict", "other")
        async with in_a_call(node, user) as (hanging, done):
            (node.stop.set if how == "told to stop" else node.scope.cancel)()
            await node.ended()
            assert not hanging.go_on.is_set()
            assert done == []
        status = (await world.claim(node)).status
    last = [(one.kind, one.text.partition(":")[0]) for one in node.notices][-2:]
    assert last[1] == ("abandoned", "main"), "and not the other shard, which may be closed"
    assert (status, last[0][0]) == (
        ("withdrawn", "withdrawn") if how == "told to stop" else ("live", "verdict")
    )
    assert (node.loaded.open_slots, node.loaded.faults) == (1, []), "nobody called it meanwhile"


# -- clocks --------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """`clock(seconds)`: from now on so far off, for whoever asks this machine and not the broker."""
    real = time.time
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: real() + seconds)


@pytest.mark.parametrize(
    ("off_by", "said"),
    [(3_600, "stale.* 3,600 s ahead of the broker's"), (-1_800, "stale.* 1,800 s behind")],
)
async def test_a_node_whose_clock_is_wrong_leaves_nothing_in_the_log_however_often_it_starts(
    world, clock, off_by, said
):
    key = await world.enrolled()
    async with world.tracker():
        clock(off_by)
        for _ in range(2):
            node = world.node(key)
            await fails(node, NotAdmitted, f"{said}.*NTP.*nothing was registered")
            assert [one.kind for one in node.notices] == ["listening"]
        assert await world.said_by(key) == []


async def test_a_clock_is_as_wrong_as_the_policy_in_force_says(world, clock):
    key = await world.enrolled()
    strict = msgspec.structs.replace(POLICY, max_clock_skew_ms=1_000)
    await world.says(facts.PolicyChanged(policy=strict, reason="a test"))
    async with world.tracker():
        clock(5)
        await fails(world.node(key), NotAdmitted, "at most 1.0 s.*nothing was registered")
    assert await world.said_by(key) == []


async def test_a_clock_that_is_off_by_less_than_the_rule_allows_keeps_no_node(world, clock):
    key = await world.enrolled()
    async with world.tracker():
        clock(50)
        async with world.serving(key) as node:
            assert (await node.told("verdict")).claim.status == "live"


async def test_a_node_that_nobody_tells_the_time_registers_as_it_did(world, clock):
    key = await world.enrolled()
    clock(3_600)
    async with world.serving(key) as node:
        await node.told("registered")


@pytest.mark.parametrize("time_ns", [0, 2**63 - 1])
def test_a_time_that_no_clock_could_have_is_one_that_is_far_off(time_ns):
    with pytest.raises(
        CapabilityAdmissionError, match=r"stale: .* s (ahead of|behind) the broker's"
    ):
        offer().admit(ClockAnswer(time_ns))


# -- boots that are over, and nodes that are not heard -------------------------------------------------


async def fails(node, error, match):
    with anyio.fail_after(PATIENCE_S), pytest.raises(error, match=match):
        await node.run()


async def test_a_newer_boot_elsewhere_ends_this_one(world, tmp_path):
    key = await world.enrolled()
    async with world.tracker(), alongside() as tasks:
        elder = world.node(key)
        tasks.start_soon(fails, elder, BootIsOver, "has taken the place")
        await elder.told("verdict")
        # the other process has a copy of the key, and knows what the first one said
        newer = Publisher(world.nc, REALM, key)
        boot_id = str(uuid.uuid4())
        await newer.publish(
            registration(offer(), boot_id=boot_id, endpoint="grpc://10.0.0.7:1", host=host_of(key))
        )
        await elder.ended()
        claim = await world.claim(elder)
        assert (claim.status, claim.boot_id) == ("live", boot_id)


async def test_a_reinstated_node_must_start_anew_and_its_old_process_stops(world):
    key = await world.enrolled()
    async with world.tracker(), alongside() as tasks:
        node = world.node(key)
        tasks.start_soon(fails, node, BootIsOver, "must be started again")
        await node.told("verdict")
        await world.says(facts.NodeSuspended(node=key.public, reason="maintenance"))
        assert "suspended" in (await node.told("verdict", "suspended")).text
        await world.says(facts.NodeReinstated(node=key.public, reason="done"))
        await node.ended()


@pytest.mark.parametrize("has_served", [False, True])
async def test_a_node_that_is_suspended_is_told_so_and_what_to_do(world, has_served):
    key = await world.enrolled()
    async with world.tracker():
        if has_served:
            await world.has_served(key)
        await world.says(facts.NodeSuspended(node=key.public, reason="maintenance"))
        node = world.node(key)
        await fails(node, NotAdmitted, r"suspended.*meshnet admin node enrol.*reinstate")
        assert [one.kind for one in node.notices] == ["listening", "registered"]


async def test_a_node_that_nobody_enrolled_is_told_so_and_what_to_do(world):
    async with world.tracker():
        stranger = world.node(EventKey(os.urandom(32)))
        await fails(stranger, NotAdmitted, r"not-enrolled.*meshnet admin node enrol")


async def test_a_proof_too_old_for_the_policy_in_force_is_not_registered(world):
    key = await world.enrolled()
    async with world.tracker():
        strict = msgspec.structs.replace(POLICY, max_report_age_ms=60_000)
        await world.says(facts.PolicyChanged(policy=strict, reason="be strict"))
        node = world.node(key)
        node.shards = [LoadedOffer(offer(age_s=120), node.loaded, ShardFacts.of(node.loaded))]
        await fails(node, NotAdmitted, "stale.*nothing was registered")
    assert await world.said_by(key) == []


async def test_a_registration_that_the_registry_refuses_names_its_code(world, monkeypatch):
    # as where nobody told the policy in time
    monkeypatch.setattr(serve_module, "_CHECK_TIMEOUT_S", 0.0)
    key = await world.enrolled()
    async with world.tracker():
        strict = msgspec.structs.replace(POLICY, max_report_age_ms=60_000)
        await world.says(facts.PolicyChanged(policy=strict, reason="be strict"))
        node = world.node(key)
        # passed at the node, whose own bound is wider, and too old for this realm's policy
        node.shards = [LoadedOffer(offer(age_s=120), node.loaded, ShardFacts.of(node.loaded))]
        await fails(node, NotAdmitted, r"main was refused: .*mend that and start again")


# -- neighbours that refused ---------------------------------------------------------------------------


class Neighbours:
    """A node at work, and the one behind it, which ran another recipe than it registered."""

    def __init__(self, tracker, node, behind):
        self.tracker, self.node, self.behind = tracker, node, behind

    def mend(self):
        """The one behind runs what it registered, in the same boot."""
        loaded = self.behind.shard.loaded
        mended = served("main", loaded.start, loaded.end, loaded=loaded)
        self.behind.node.shards["main"] = self.behind.shard = mended

    def accepted(self):
        return [fact.accepted for fact in self.behind.said.of(SHOOK_HANDS)]


@asynccontextmanager
async def that_refused(world):
    key, other, user = [await world.enrolled(name) for name in ("ada", "bob", "a user")]
    async with world.tracker() as tracker, lab() as lab_:
        behind = await lab_.start(
            3, LAYERS, recipe=OTHER, key=other, tracker=world.asker, listed=False
        )
        await Publisher(world.nc, REALM, other).publish(
            registration(
                offer(3, LAYERS),
                boot_id=behind.boot_id,
                endpoint=behind.endpoint,
                host=host_of(other),
            )
        )
        async with world.serving(key, layers=(0, 3)) as node:
            await node.told("verdict")
            with pytest.raises(SessionFailed, match="fingerprint-mismatch"):
                async with lab_.open(
                    node.as_remote().hop(), behind.hop(), caller=lab_.caller(key=user)
                ):
                    pass
            yield Neighbours(tracker, node, behind)
        await freed(behind)


async def handshakes_said_by(world, key, *, count):
    """What the log holds, once there are so many."""
    found = []
    with anyio.fail_after(PATIENCE_S):
        while len(found) < count:
            found = [
                one.accepted for one in await world.said_by(key) if isinstance(one, SHOOK_HANDS)
            ]
    return found


@pytest.fixture
def soon(monkeypatch):
    """Refused neighbours are met again after tenths of the seconds that it takes elsewhere."""
    monkeypatch.setattr(serve_module, "RETRY_EVERY_S", 0.05)
    monkeypatch.setattr(handshake, "FIRST_RETRY_S", 0.2)
    monkeypatch.setattr(handshake, "LONGEST_RETRY_S", 0.4)


async def test_a_refused_neighbour_is_met_again_and_once_mended_accepted(world, soon):
    async with that_refused(world) as pair:
        assert await handshakes_said_by(world, pair.node.key, count=1) == [False]
        pair.mend()
        await until(lambda: pair.accepted() == [False, True])
        assert await handshakes_said_by(world, pair.node.key, count=2) == [False, True]


@contextmanager
def full_disk(path):
    """No file of this process grows by more than a little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = max(file.stat().st_size for file in path.glob("outbox*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (room + 2_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@asynccontextmanager
async def met_again_with_a_full_disk(world, caplog):
    """A pair that accepts each other again, of which one cannot write that down."""
    caplog.set_level(logging.INFO, logger="meshnet_node.session")
    async with that_refused(world) as pair:
        # the tracker's disk is the same one: it must have nothing to write
        await handshakes_said_by(world, pair.node.key, count=1)
        await pair.tracker.caught_up()
        with full_disk(pair.node.directory.path):
            pair.mend()
            await until(lambda: "Nothing was written; make room" in caplog.text)
        assert pair.accepted() == [False, True]
        yield pair


async def test_a_disk_that_is_full_while_a_neighbour_is_met_again_ends_no_node(world, soon, caplog):
    async with met_again_with_a_full_disk(world, caplog) as pair:
        await anyio.sleep(5 * pair.node.settings.ask_every_s)
        assert not pair.node.over.is_set()
        claim = await world.claim(pair.node)
        assert (claim.status, claim.boot_id) == ("live", pair.node.boot_id)
    assert pair.node.notices[-1].kind == "withdrawn"


async def test_what_a_full_disk_did_not_take_is_said_once_there_is_room(world, soon, caplog):
    async with met_again_with_a_full_disk(world, caplog) as pair:
        assert await handshakes_said_by(world, pair.node.key, count=2) == [False, True]
