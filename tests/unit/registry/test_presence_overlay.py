"""Who is alive by the presence that was heard: for how long, for whom, and within what memory."""

import pytest

from kit import R, Scenario, boot_of, key_of
from meshnet_events.presence import Presence
from meshnet_tracker import presence as overlay_module
from meshnet_tracker.presence import PresenceOverlay, boots_in
from meshnet_tracker.registry.eligibility import judge
from meshnet_tracker.registry.routing.plan import NoRoute, Route, plan


class Listener:
    """A tracker's overlay over a scenario's state, and the clock that it goes by."""

    def __init__(self, lab):
        self.lab = lab
        self.now = 1_000.0
        self.overlay = PresenceOverlay(boots_in(lambda: lab.state), lambda: self.now)

    def hear(self, node, *shards, boot="b1", load=0):
        said = Presence(boot_id=boot_of(node, boot), load=load, shards=shards or ("main",))
        self.overlay.hear(self.lab.public(node), said)

    def hears(self, node, shard_id="main"):
        return self.overlay.is_live(self.lab.claim(node, shard_id))


@pytest.fixture
def listener():
    lab = Scenario()
    lab.register("n1@h1[0,14)")
    lab.register("n2@h2[14,28)")
    return Listener(lab)


def test_who_has_just_begun_to_listen_calls_nobody_live(listener):
    assert not listener.hears("n1")
    verdict = judge(listener.lab.state, listener.lab.claim("n1"), listener.overlay)
    assert verdict.reasons == ("dark", "not-live")


def test_a_claim_is_live_for_fifteen_seconds_and_no_longer(listener):
    listener.hear("n1")
    listener.now += 15.0
    assert listener.hears("n1")
    listener.now += 0.001
    assert not listener.hears("n1")
    assert not listener.hears("n2")


def test_a_shard_or_boot_that_was_not_named_is_not_live(listener):
    listener.lab.register("n1/spare@h1[0,14)")
    listener.hear("n1", "spare")
    assert (listener.hears("n1"), listener.hears("n1", "spare")) == (False, True)
    listener.hear("n1", "main", "spare")
    assert listener.hears("n1")
    listener.hear("n1", "spare")
    assert not listener.hears("n1"), "the newest word of a boot counts"


def test_presence_before_registration_makes_live_at_once(listener):
    listener.hear("n3")
    listener.lab.register("n3@h3[0,28)")
    assert listener.hears("n3")
    listener.now += 16
    assert not listener.hears("n3")
    listener.hear("n3")
    assert listener.hears("n3")


def test_presence_of_the_next_boot_before_it_registers_counts_for_that_boot_alone(listener):
    listener.hear("n1", boot="b2")
    assert not listener.hears("n1")
    listener.lab.register("n1@h1[0,14)", boot="b2")
    assert listener.hears("n1")


def test_a_process_that_outlived_its_boot_takes_nothing_from_its_successor(listener):
    listener.lab.register("n1@h1[0,14)", boot="b2")
    listener.hear("n1", boot="b2", load=3)
    listener.hear("n1", boot="b1", load=900)
    assert listener.hears("n1")
    assert listener.overlay.load(listener.lab.public("n1")) == 3


def test_the_load_is_the_last_one_said_and_nothing_once_it_is_old(listener):
    n1 = listener.lab.public("n1")
    assert listener.overlay.load(n1) == 0
    listener.hear("n1", load=700)
    listener.hear("n1", load=300)
    assert listener.overlay.load(n1) == 300
    listener.now += 16
    assert listener.overlay.load(n1) == 0
    assert listener.overlay.load(listener.lab.public("stranger")) == 0


def test_made_up_issuers_find_a_bound_and_push_out_no_node(listener, monkeypatch):
    monkeypatch.setattr(overlay_module, "MAX_EARLY", 100)
    listener.hear("n1")
    for number in range(500):
        said = Presence(boot_id=boot_of("x", "b1"), load=0, shards=("main",))
        listener.overlay.hear(key_of(f"made up {number}").public, said)
    assert len(listener.overlay) == 101
    assert listener.hears("n1")


def test_boots_made_up_by_a_node_are_one_entry(listener):
    for number in range(50):
        listener.hear("n1", boot=f"made up {number}")
    assert len(listener.overlay) == 1


def test_who_went_silent_is_forgotten_when_another_speaks(listener):
    listener.hear("n1")
    listener.hear("stranger")
    listener.now += 16
    listener.hear("n2")
    assert len(listener.overlay) == 1


def test_who_goes_on_speaking_hides_no_one_who_went_silent(listener):
    listener.hear("n1")
    listener.hear("n2")
    listener.now += 10
    listener.hear("n1")
    listener.now += 10
    listener.hear("n1")
    assert len(listener.overlay) == 1


def test_a_route_leaves_out_who_is_not_heard(listener):
    lab, overlay = listener.lab, listener.overlay
    listener.hear("n1")
    found = plan(lab.state, R.key, "certify", liveness=overlay)
    assert isinstance(found, NoRoute)
    assert found.codes == ("range",)
    listener.hear("n2")
    assert isinstance(plan(lab.state, R.key, "certify", liveness=overlay), Route)
