"""Every sentence of *Routes* in the specification, on registries small enough to see through.

`tests/property/test_routes.py` compares the same with an oracle. Spelling is that of `rows_kit`:
`node/shard_id@host[start,end)`, `~` before a declared host, 28 layers.
"""

import sys
import time

import pytest

from meshnet_tracker.registry.routing import obstacles as hindrances
from meshnet_tracker.registry.routing import plan as planning
from meshnet_tracker.registry.routing import search as searching
from meshnet_tracker.registry.routing.plan import NoRoute, Route, plan
from meshnet_tracker.registry.routing.problem import Effort
from meshnet_tracker.registry.rows import Node
from rows_kit import KEY, SEQUENCE, Presence, claim, digest, handshake, registry


def route(state, purpose="serve", **asked):
    """The node/shard_id of each hop (`main` left out), joined; the plan must find a route."""
    found = plan(state, KEY, purpose, **asked)
    assert isinstance(found, Route), found
    return names(found.hops)


def names(hops):
    return " ".join(
        hop.node if hop.shard_id == "main" else f"{hop.node}/{hop.shard_id}" for hop in hops
    )


def obstacles(state, purpose="serve", **asked):
    found = plan(state, KEY, purpose, **asked)
    assert isinstance(found, NoRoute), found
    return {obstacle.code: obstacle.detail for obstacle in found.obstacles}


# -- what a plan says ------------------------------------------------------------------------------


def test_a_route_names_for_each_hop_where_it_is_what_it_holds_and_what_it_computes():
    state = registry("n1@h1[0,14)", "n2/spare@h2[10,28)")
    found = plan(state, KEY)
    assert isinstance(found, Route)
    first, second = found.hops
    assert (first.node, first.shard_id, first.boot_id) == ("n1", "main", "boot-of-n1")
    assert first.endpoint == "grpc://n1:9000"
    assert (second.node, second.shard_id, second.boot_id) == ("n2", "spare", "boot-of-n2")
    assert (second.start, second.end) == (10, 28)


def test_a_route_carries_its_fingerprint_its_purpose_and_the_sequence_it_was_computed_at():
    found = plan(registry("n1[0,28)"), KEY)
    assert isinstance(found, Route)
    assert (found.recipe_key, found.purpose, found.sequence) == (KEY, "serve", SEQUENCE)
    fingerprint = (found.model_artifact_digest, found.runtime_recipe_digest)
    assert fingerprint == (digest("artifact"), digest("recipe"))


def test_a_refusal_carries_recipe_purpose_and_sequence_too():
    found = plan(registry("n1[0,14)"), KEY, "certify")
    assert isinstance(found, NoRoute)
    assert (found.recipe_key, found.purpose, found.sequence) == (KEY, "certify", SEQUENCE)


def test_an_overlap_is_resolved_by_telling_a_hop_where_the_previous_one_stopped():
    state = registry("n1[0,12)", "n2[5,20)", "n3[20,28)")
    found = plan(state, KEY)
    assert isinstance(found, Route)
    computes = [(hop.effective_start, hop.effective_end) for hop in found.hops]
    assert computes == [(0, 12), (12, 20), (20, 28)]
    assert [(hop.start, hop.end) for hop in found.hops] == [(0, 12), (5, 20), (20, 28)]


def test_a_hop_never_stops_before_its_own_end_even_where_that_would_suit_a_proven_seam():
    state = registry("n1[0,16)", "n2[14,28)", proven=[14], certify="seams")
    assert list(obstacles(state)) == ["seam"]


# -- the order -------------------------------------------------------------------------------------


def test_fewest_hops_come_before_everything_else():
    state = registry("a[0,7)", "b[7,16)", "c[16,28)", "z1[0,15)", "z2[15,28)", proven=[7, 16])
    assert route(state, liveness=Presence(loads={"z1": 1000})) == "z1 z2"


def test_to_serve_most_proven_seams_come_next():
    state = registry("a[0,14)", "b[14,28)", "y[0,13)", "z[13,28)", proven=[13])
    assert route(state, liveness=Presence(loads={"y": 1000})) == "y z"


def test_to_certify_fewest_proven_seams_come_next_so_that_new_cuts_get_proven():
    state = registry("a[0,14)", "b[14,28)", "y[0,13)", "z[13,28)", proven=[14])
    assert route(state, "certify", liveness=Presence(loads={"y": 1000})) == "y z"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_then_the_lowest_highest_load_decides(purpose):
    state = registry("a[0,14)", "b[0,14)", "y[14,28)", "z[14,28)")
    loads = {"a": 300, "b": 200, "y": 300, "z": 100}
    assert route(state, purpose, liveness=Presence(loads=loads)) == "b z"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_load_below_the_highest_is_no_reason_to_leave_the_smallest_keys(purpose):
    state = registry("a[0,14)", "b[0,14)", "y[14,28)")
    loads = {"a": 500, "b": 0, "y": 500}
    assert route(state, purpose, liveness=Presence(loads=loads)) == "a y"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_a_load_that_shows_only_behind_a_refused_pair_still_leaves_keys_to_decide(purpose):
    # `c` seems to lead on to the idle `y`, which makes `b` look better than `a`; but `c` and `y`
    # are at odds, and once the busy `z` is in the route the load of `a` is no drawback any more
    claims = ["a@h1[0,9)", "b@h1[0,9)", "c@h2[9,18)", "y@h2[18,28)", "z@h2[18,28)"]
    state = registry(*claims, refused=[("c", "y")], groups=dict.fromkeys("abcyz", "g"))
    loads = {"a": 500, "b": 100, "z": 900}
    assert route(state, purpose, liveness=Presence(loads=loads)) == "a c z"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_then_node_keys_decide_hop_by_hop_and_then_shard_ids(purpose):
    state = registry("b[0,14)", "a/y[0,14)", "a/x[0,14)", "d[14,28)", "c/y[14,28)", "c/x[14,28)")
    assert route(state, purpose) == "a/x c/x"


def test_without_an_overlay_loads_play_no_part():
    assert route(registry("b[0,28)", "a[0,28)")) == "a"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_the_same_state_gives_the_same_answer_in_whatever_order_the_claims_came(purpose):
    claims = ["n1[0,14)", "n2[0,14)", "n3[14,28)", "n4[14,28)", "n5[0,9)", "n6[9,28)"]
    assert plan(registry(*claims), KEY, purpose) == plan(registry(*claims[::-1]), KEY, purpose)


# -- exclude and alternatives ----------------------------------------------------------------------


def test_a_route_names_no_node_that_is_to_be_excluded():
    state = registry("a[0,28)", "b[0,14)", "c[14,28)")
    assert route(state, exclude={"a"}) == "b c"
    assert obstacles(state, exclude={"a", "b"}) == {"range": "no usable claim holds layers [0, 14)"}


def test_alternatives_are_the_next_best_and_share_no_claim_with_those_before():
    state = registry("a[0,28)", "b[0,14)", "c[14,28)", "d[0,14)", "e[14,28)")
    found = plan(state, KEY, alternatives=5)
    assert isinstance(found, Route)
    assert [names(hops) for hops in (found.hops, *found.alternatives)] == ["a", "b c", "d e"]


def test_no_more_alternatives_come_than_are_asked_for():
    state = registry("a[0,28)", "b[0,28)", "c[0,28)")
    found = plan(state, KEY, alternatives=1)
    assert isinstance(found, Route)
    assert [names(hops) for hops in found.alternatives] == ["b"]
    only = plan(state, KEY)
    assert isinstance(only, Route)
    assert only.alternatives == ()


def test_fewer_than_no_alternatives_cannot_be_asked_for():
    for state in (registry("a[0,28)"), registry()):
        with pytest.raises(ValueError, match="alternatives is -1; expected 0 or more"):
            plan(state, KEY, alternatives=-1)


# -- handshakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [("a", "c"), ("c", "a")])
@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_neighbours_are_unusable_together_while_either_side_refused_the_other(pair, purpose):
    claims = ["a[0,14)", "b[0,14)", "c[14,28)"]
    assert route(registry(*claims), purpose) == "a c"
    assert route(registry(*claims, refused=[pair]), purpose) == "b c"


def test_nodes_at_odds_may_be_in_one_route_as_long_as_they_are_not_neighbours():
    state = registry("a[0,9)", "b[9,18)", "c[18,28)", refused=[("a", "c")])
    assert route(state) == "a b c"


def test_a_newer_accepted_handshake_of_the_same_side_brings_the_pair_back():
    state = registry("a[0,14)", "b[14,28)", refused=[("a", "b")])
    assert list(obstacles(state)) == ["handshake"]
    state.put_handshake(handshake("b", "a", accepted=True))  # the other side's word
    assert list(obstacles(state)) == ["handshake"]
    state.put_handshake(handshake("a", "b", accepted=True))
    assert route(state) == "a b"


def test_a_handshake_about_another_fingerprint_stands_in_no_way():
    state = registry("a[0,14)", "b[14,28)")
    state.put_handshake(handshake("a", "b", recipe_key="0" * 64))
    assert route(state) == "a b"


def test_the_handshake_obstacle_names_who_refused_whom():
    state = registry("a[0,9)", "b[9,18)", "c[18,28)", refused=[("b", "a"), ("b", "c"), ("c", "b")])
    assert obstacles(state) == {
        "handshake": "b refused a; b and c refused one another, for this fingerprint"
    }


def test_the_handshake_obstacle_names_a_refusal_once_however_often_the_two_meet():
    state = registry(*[f"{'ab'[i % 2]}/s{i}[{i * 4},{i * 4 + 4})" for i in range(7)],
                     refused=[("a", "b")])  # fmt: skip
    assert obstacles(state) == {"handshake": "a refused b, for this fingerprint"}


# -- proven seams ----------------------------------------------------------------------------------


def test_with_certify_seams_every_seam_of_a_serving_route_must_be_proven():
    claims = ["a[0,14)", "b[14,28)", "w[0,9)", "x[9,13)", "y[13,28)"]
    assert route(registry(*claims, proven=[9, 13])) == "a b"
    assert route(registry(*claims, proven=[9, 13], certify="seams")) == "w x y"


def test_with_certify_seams_the_obstacle_names_the_layers_of_unproven_seams():
    claims = ["a[0,9)", "b[9,14)", "c[14,28)"]
    assert obstacles(registry(*claims, proven=[9], certify="seams")) == {
        "seam": "seam 14 is not proven, and the policy asks for it"
    }
    assert obstacles(registry(*claims, certify="seams")) == {
        "seam": "seams 9, 14 are not proven, and the policy asks for it"
    }


def test_with_certify_seams_a_certifying_route_may_cut_anew():
    assert route(registry("a[0,14)", "b[14,28)", certify="seams"), "certify") == "a b"


def test_a_whole_model_on_one_node_has_no_seam_to_prove():
    assert route(registry("a[0,28)", certify="seams")) == "a"


# -- who takes part in certifying ------------------------------------------------------------------


def test_to_serve_one_node_is_enough_and_it_may_serve_twice():
    assert route(registry("a/x[0,14)", "a/y[14,28)")) == "a/x a/y"


def test_a_certifying_route_names_no_node_twice():
    state = registry("a/x@h1[0,9)", "b@h2[9,18)", "a/y@h1[18,28)")
    assert list(obstacles(state, "certify")) == ["nodes"]
    state = registry("a/x@h1[0,9)", "b@h2[9,18)", "a/y@h1[18,28)", "c@h1[18,28)")
    assert route(state, "certify") == "a/x b c"


def test_a_certifying_route_prefers_two_hops_to_the_whole_model_on_one():
    assert route(registry("a[0,28)", "b[0,14)", "c[14,28)"), "certify") == "b a"


def test_a_certifying_route_has_as_many_nodes_as_the_policy_asks_for():
    state = registry("a[0,14)", "b[14,28)", "c[0,9)", "d[9,14)", min_certifying_nodes=3)
    assert route(state, "certify") == "c a b"


def test_a_certifying_route_has_as_many_hosts_as_the_policy_asks_for():
    state = registry("a@h1[0,14)", "b@h1[14,28)", "c@h2[14,28)")
    assert route(state, "certify") == "a c"
    assert route(registry("a@h1[0,14)", "b@h1[14,28)", min_distinct_hosts=1), "certify") == "a b"


def test_a_declared_host_counts_only_if_the_policy_accepts_it():
    claims = ["a@h1[0,14)", "b@~h2[14,28)"]
    assert list(obstacles(registry(*claims), "certify")) == ["hosts"]
    assert route(registry(*claims, accept_declared_hosts=True), "certify") == "a b"


def test_hosts_are_counted_by_id_whatever_their_source():
    state = registry("a@h1[0,14)", "b@~h1[14,28)", accept_declared_hosts=True)
    assert list(obstacles(state, "certify")) == ["hosts"]


def test_a_certifying_route_has_as_many_groups_as_the_policy_asks_for():
    groups = {"a": "ours", "b": "ours", "c": "theirs"}
    claims = ["a[0,14)", "b[14,28)", "c[14,28)"]
    assert route(registry(*claims, groups=groups), "certify") == "a b"
    assert route(registry(*claims, groups=groups, min_distinct_groups=2), "certify") == "a c"


def test_a_node_without_a_group_counts_as_no_group():
    state = registry("a[0,14)", "b[14,28)", groups={"a": "", "b": ""})
    assert list(obstacles(state, "certify")) == ["groups"]


def test_participants_are_asked_for_nothing_when_a_route_serves():
    state = registry("a@~h1[0,28)", groups={"a": ""}, min_certifying_nodes=5)
    assert route(state) == "a"


# -- what a claim must be to take part -------------------------------------------------------------


@pytest.mark.parametrize(
    "node",
    [
        Node("n1", enrolled=True, conflict=True),
        Node("n1", enrolled=True, suspended=True),
        Node("n1", enrolled=False),
    ],
    ids=["conflict", "suspended", "not-enrolled"],
)
@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_claims_of_a_node_that_is_barred_take_no_part(node, purpose):
    state = registry("n1[0,14)", "n2[14,28)", nodes=[node])
    assert obstacles(state, purpose) == {"range": "no usable claim holds layers [0, 14)"}


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_a_node_that_is_not_enrolled_takes_part_where_enrolment_is_open(purpose):
    stranger = Node("n1", enrolled=False, group="g1")
    state = registry("n1[0,14)", "n2[14,28)", nodes=[stranger], enrolment="open")
    assert route(state, purpose) == "n1 n2"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_a_synthetic_claim_takes_no_part(purpose):
    state = registry("n1[0,14)", claim("n2[14,28)", synthetic=True))
    assert obstacles(state, purpose) == {"range": "no usable claim holds layers [14, 28)"}


def test_a_claim_that_ended_takes_no_part():
    state = registry("n1[0,14)", claim("n2[14,28)", status="withdrawn"))
    assert list(obstacles(state)) == ["range"]


def test_with_an_overlay_a_claim_that_is_not_live_takes_no_part_and_without_one_it_does():
    state = registry("n1[0,14)", "n2[14,28)", "n3[14,28)")
    assert route(state) == "n1 n2"
    assert route(state, liveness=Presence({("n1", "main"), ("n3", "main")})) == "n1 n3"
    assert list(obstacles(state, liveness=Presence(set()))) == ["range"]


def test_claims_of_another_recipe_take_no_part():
    state = registry("n1[0,14)", claim("n2[14,28)", recipe=digest("another")))
    assert list(obstacles(state)) == ["range"]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_a_recipe_that_nobody_offered_is_unknown(purpose):
    found = plan(registry(), "0" * 64, purpose)
    assert isinstance(found, NoRoute)
    assert found.codes == ("unknown-recipe",)
    assert "0" * 64 in found.obstacles[0].detail


def test_a_dark_recipe_is_not_certified_and_may_only_be_certified():
    state = registry("n1[0,14)", "n2[14,28)", status="dark")
    assert obstacles(state) == {"not-certified": "the recipe is dark; only a certified one serves"}
    assert route(state, "certify") == "n1 n2"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_a_revoked_recipe_has_no_route_and_the_operators_reason_is_told(purpose):
    state = registry("n1[0,14)", "n2[14,28)", status="revoked")
    state.recipes[KEY].revoked_reason = "wrong tokens at 4k"
    assert obstacles(state, purpose) == {"revoked": "an operator revoked it: wrong tokens at 4k"}


def test_a_barred_recipe_also_tells_what_else_would_be_in_the_way():
    state = registry("n1[0,14)", status="dark")
    assert obstacles(state) == {
        "not-certified": "the recipe is dark; only a certified one serves",
        "range": "no usable claim holds layers [14, 28)",
    }


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_a_gap_is_named_with_every_layer_that_is_missing(purpose):
    state = registry("n1[3,9)", "n2[8,14)", "n3[20,26)")
    assert obstacles(state, purpose) == {
        "range": "no usable claim holds layers [0, 3), [14, 20), [26, 28)"
    }
    assert obstacles(registry(), purpose) == {"range": "no usable claim holds layers [0, 28)"}


def test_while_there_is_a_gap_nothing_else_is_said_to_be_in_the_way():
    state = registry("a/x[0,9)", "a/y[9,14)", refused=[("a", "a")], groups={"a": ""})
    assert list(obstacles(state, "certify")) == ["range"]


def test_too_few_nodes_hosts_and_groups_are_told_with_what_there_is():
    assert obstacles(registry("a@h1[0,14)", "b@h1[14,28)"), "certify") == {
        "hosts": "a certifying route needs 2 distinct hosts; the best without that has 1"
    }
    state = registry("a[0,14)", "b[14,28)", groups={"a": "g", "b": "g"}, min_distinct_groups=2)
    assert obstacles(state, "certify") == {
        "groups": "a certifying route needs 2 distinct groups; the best without that has 1"
    }
    state = registry("a[0,14)", "b[14,28)", min_certifying_nodes=3)
    assert obstacles(state, "certify") == {
        "nodes": "a certifying route needs 3 distinct nodes; the best without that has 2"
    }


def test_a_node_that_would_be_named_twice_is_told_as_such():
    state = registry("a/x@h1[0,9)", "b@h2[9,18)", "a/y@h1[18,28)")
    assert obstacles(state, "certify") == {
        "nodes": "a certifying route names no node twice; the best without that names 2 in 3 hops"
    }


def test_demands_that_are_only_together_in_the_way_are_all_named():
    state = registry("a@h1[0,28)", "b@h2[0,28)", "c@h3[0,28)")
    assert obstacles(state, "certify") == {
        "nodes": "a certifying route needs 2 distinct nodes; one hop already covers the model: "
        "nodes must serve fewer layers each",
        "hosts": "a certifying route needs 2 distinct hosts; one hop already covers the model: "
        "nodes must serve fewer layers each",
    }


def test_where_no_node_has_a_group_or_no_host_counts_that_is_said_and_not_that_there_are_too_few():
    alone = registry("a@h1[0,28)", groups={"a": ""})
    assert obstacles(alone, "certify")["groups"] == (
        "a certifying route needs 1 distinct group; no node of the best without that has one"
    )
    assert "groups" not in obstacles(registry("a@h1[0,28)", groups={"a": "g"}), "certify")
    declared = registry("a@~h1[0,14)", "b@~h2[14,28)")
    assert obstacles(declared, "certify") == {
        "hosts": "a certifying route needs 2 distinct hosts; declared hosts do not count under this "
        "policy, and the best without that has no others"
    }


def test_where_either_of_two_demands_could_give_way_both_are_named():
    # through 13 the pair is at odds, through 14 the seam is unproven
    claims = ["a[0,13)", "b[13,28)", "c[0,14)", "d[14,28)"]
    assert obstacles(registry(*claims, proven=[13], refused=[("a", "b")], certify="seams")) == {
        "seam": "seam 14 is not proven, and the policy asks for it",
        "handshake": "a refused b, for this fingerprint",
    }


def test_a_refused_handshake_of_others_is_never_said_to_be_in_the_way():
    state = registry("a@h1[0,14)", "b@h1[14,28)", refused=[("x", "y")], groups={"a": "", "b": ""})
    assert list(obstacles(state, "certify")) == ["hosts", "groups"]


# -- bounds ----------------------------------------------------------------------------------------


def many_shards_of_few_nodes():
    """27 nodes that each hold each of 28 layers alone: 28 hops, and one node too few for them."""
    return [f"n{i}/s{j}@h{i}[{j},{j + 1})" for i in range(27) for j in range(28)]


def many_nodes_on_few_hosts():
    """Chains have 10 hops or more, of 600 nodes on 9 hosts; the policy will ask for 10."""
    return [
        f"n{i}@h{i % 9}[{start},{start + width})"
        for i in range(600)
        for width in [1 + i % 5]
        for start in [i * 7 % (29 - width)]
    ]


@pytest.mark.parametrize(
    ("claims", "policy", "code"),
    [
        (many_shards_of_few_nodes(), {}, "nodes"),
        (many_nodes_on_few_hosts(), {"min_distinct_hosts": 10}, "hosts"),
        (many_nodes_on_few_hosts(), {"min_certifying_nodes": 29}, "nodes"),
    ],
    ids=["nodes twice", "few hosts", "few hops"],
)
def test_demands_that_cannot_be_met_are_refused_in_bounded_time(claims, policy, code):
    state = registry(*claims, **policy)
    started = time.perf_counter()
    assert list(obstacles(state, "certify")) == [code]
    # about half a second of steps; the rest is for a machine that is busy with other things
    assert time.perf_counter() - started < 5


def give_up_after(monkeypatch, steps, module):
    monkeypatch.setattr(module, "Effort", lambda *_: Effort(steps))


def test_a_plan_that_gives_up_names_every_demand_and_says_that_nothing_is_known(monkeypatch):
    # a route is there, a b d; but nothing that may be said to be in its way
    claims = ["a@h1[0,14)", "b@h1[14,20)", "c@h1[14,28)", "d@h2[20,28)"]
    state = registry(*claims, refused=[("x", "y")])
    assert route(state, "certify") == "a b d"
    give_up_after(monkeypatch, 20, planning)
    give_up_after(monkeypatch, 20, searching)
    found = obstacles(state, "certify")
    assert list(found) == ["handshake", "nodes", "hosts", "groups"]
    assert set(found.values()) == {hindrances.UNDECIDED}


def test_a_question_that_stays_open_is_not_taken_for_a_no(monkeypatch):
    claims = ["a@h1[0,14)", "b@h2[14,28)"]
    state = registry(*claims, refused=[("a", "b")])
    assert list(obstacles(state, "certify")) == ["handshake"]
    give_up_after(monkeypatch, 0, hindrances)
    give_up_after(monkeypatch, 0, searching)
    found = obstacles(state, "certify")
    assert list(found) == ["handshake", "nodes", "hosts", "groups"]
    assert set(found.values()) == {hindrances.UNDECIDED}


def test_what_no_search_can_refute_in_bounded_time_is_undecided():
    # three layers are held by two nodes alone, which shows only once all else has been tried
    claims = [
        f"n{i}/s{j}@h{i}[{j},{j + 1})" for i in range(28) for j in range(28) if j < 25 or i < 2
    ]
    started = time.perf_counter()
    assert set(obstacles(registry(*claims), "certify").values()) == {hindrances.UNDECIDED}
    assert time.perf_counter() - started < 10


def hostile(nodes, *, apart=False):
    """Shards up to every layer, and one from layer 1 on, of each of many nodes on one host."""
    return [
        f"a{i}/s{start}-{end}@{f'e{i}' if apart else 'evil'}[{start},{end})"
        for i in range(nodes)
        for start, end in [*((0, end) for end in range(1, 78)), (1, 78)]
    ]


HONEST = ["v1@h1[0,39)", "v2@h2[39,78)"]


@pytest.mark.parametrize("apart", [False, True], ids=["one host", "hosts"])
@pytest.mark.parametrize("spite", ["all", "all and back", "honest", "back"])
@pytest.mark.parametrize("nodes", [28, 90])
def test_nodes_that_refuse_everybody_do_not_hide_the_route_of_others(nodes, spite, apart):
    others = [f"a{i}" for i in range(nodes)]
    victims = ["v1", "v2"]
    refused = {
        "all": [(a, b) for a in others for b in (*others, *victims)],
        "all and back": [(a, b) for a in others for b in (*others, *victims)]
        + [(v, a) for v in victims for a in others],
        "honest": [(a, v) for a in others for v in victims],
        "back": [(v, a) for v in victims for a in others],
    }[spite]
    state = registry(*HONEST, *hostile(nodes, apart=apart), layers=78, proven=[39], refused=refused)
    started = time.perf_counter()
    found = plan(state, KEY, "certify")
    assert time.perf_counter() - started < 10
    assert isinstance(found, Route), found
    if spite.startswith("all") or not apart:  # else they make a route themselves
        assert names(found.hops) == "v1 v2"


def test_nodes_of_one_host_that_get_along_with_all_do_not_hide_the_second_host():
    state = registry("v1@h1[0,39)", "v2@evil[39,78)", *hostile(90), layers=78)
    assert route(state, "certify").startswith("v1 ")


def test_a_search_that_gives_up_falls_back_on_nodes_that_get_along(monkeypatch):
    # only the wide shards of v1 and v2 and the many of the others are there to choose from
    others = [f"a{i}" for i in range(28)]
    refused = [(a, b) for a in others for b in (*others, "v1", "v2")]
    state = registry(*HONEST, *hostile(28), layers=78, proven=[39], refused=refused)
    give_up_after(monkeypatch, 1000, planning)
    assert route(state, "certify") == "v1 v2"


def lines_run(ask):
    """How many lines of Python `ask` runs: a measure of time that no other process changes."""
    count = 0

    def trace(*_):
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ask()
    finally:
        sys.settrace(before)
    return count


def scattered(count, nodes):
    """Shards of a model with very many layers, no two of which start or end alike."""
    layers, half = 10**6, 5 * 10**5
    cuts = [i * 7919 % half for i in range(1, count)]
    shards = [f"n{i % nodes}/s{i}@h[{cut},{half + (cut * 31 + i) % half})"
              for i, cut in enumerate(cuts)]  # fmt: skip
    return [f"n0/all@h[0,{layers})", *shards]


@pytest.mark.parametrize("loads", [None, {"n0": 3, "n1": 7}], ids=["no loads", "loads"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_four_times_the_shards_take_about_four_times_as_long_however_they_overlap(
    purpose, nodes, loads
):
    overlay = None if loads is None else Presence(loads=loads)
    lines = [
        lines_run(lambda state=state: plan(state, KEY, purpose, liveness=overlay))
        for count in (300, 1200)
        for state in [registry(*scattered(count, nodes), layers=10**6)]
    ]
    assert lines[1] < 6 * lines[0]


def test_a_long_chain_takes_about_as_long_per_hop_as_a_short_one():
    lines = [
        lines_run(lambda state=state: plan(state, KEY))
        for hops in (200, 800)
        for shards in [[f"n{i}[{i},{i + 1})" for i in range(hops)]]
        for state in [registry(*shards, layers=hops)]
    ]
    assert lines[1] < 6 * lines[0]


def test_two_hosts_are_found_among_a_thousand_nodes_of_one():
    halves = [f"{side}{i}@h1[{start},{start + 14})" for side, start in (("a", 0), ("b", 14))
              for i in range(500)]  # fmt: skip
    state = registry(*halves, "z@h2[14,28)")
    assert route(state, "certify") == "a0 z"


@pytest.mark.parametrize("purpose", ["serve", "certify"])
def test_a_route_may_have_more_hops_than_python_has_stack(purpose):
    layers = 1200
    shards = [f"n{i:04}@h{i}[{i},{i + 1})" for i in range(layers)]
    found = plan(registry(*shards, layers=layers), KEY, purpose)
    assert isinstance(found, Route)
    assert len(found.hops) == layers
