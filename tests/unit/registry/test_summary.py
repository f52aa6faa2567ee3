"""A recipe at a glance."""

from meshnet_tracker.registry.coverage import Interval
from meshnet_tracker.registry.routing.plan import NoRoute, Route
from meshnet_tracker.registry.summary import summarize
from rows_kit import KEY, Presence, claim, registry


def test_a_summary_says_who_holds_what_what_is_proven_and_that_routes_exist():
    state = registry("n1@h1[0,14)", "n2@h2[10,28)", "n3@h2[14,28)", proven=[14])
    found = summarize(state, KEY)
    assert (found.recipe_key, found.status, found.layer_count) == (KEY, "certified", 28)
    assert found.replicas == (Interval(0, 10, 1), Interval(10, 28, 2))
    assert (found.gaps, found.least_replicas) == ((), 1)
    assert (found.claims, found.distinct_hosts) == (3, 2)
    assert found.proven_seams == (14,)
    assert isinstance(found.serving, Route)
    assert isinstance(found.certifying, Route)
    assert (found.serving.purpose, found.certifying.purpose) == ("serve", "certify")


def test_a_gap_is_named_and_is_why_there_are_no_routes():
    found = summarize(registry("n1[0,9)", "n2[14,28)"), KEY)
    assert found.gaps == ((9, 14),)
    assert found.least_replicas == 0
    for route in (found.serving, found.certifying):
        assert isinstance(route, NoRoute)
        assert route.codes == ("range",)


def test_a_dark_recipe_may_have_a_certifying_route_and_no_serving_one():
    found = summarize(registry("n1[0,14)", "n2[14,28)", status="dark"), KEY)
    assert found.status == "dark"
    assert isinstance(found.serving, NoRoute)
    assert found.serving.codes == ("not-certified",)
    assert isinstance(found.certifying, Route)


def test_a_revoked_recipe_still_shows_who_holds_its_layers():
    found = summarize(registry("n1[0,28)", status="revoked"), KEY)
    assert (found.status, found.least_replicas, found.claims) == ("revoked", 1, 1)
    assert isinstance(found.serving, NoRoute)


def test_claims_that_no_route_may_use_do_not_count():
    state = registry(
        "n1[0,28)", claim("n2[0,28)", synthetic=True), claim("n3[0,28)", status="withdrawn")
    )
    found = summarize(state, KEY)
    assert (found.claims, found.least_replicas, found.distinct_hosts) == (1, 1, 1)


def test_with_an_overlay_only_what_is_live_counts():
    state = registry("n1[0,28)", "n2[0,28)")
    assert summarize(state, KEY).least_replicas == 2
    found = summarize(state, KEY, Presence({("n2", "main")}))
    assert (found.claims, found.least_replicas) == (1, 1)
    assert isinstance(found.serving, Route)
    assert [hop.node for hop in found.serving.hops] == ["n2"]


def test_hosts_are_counted_as_the_policy_counts_them():
    claims = ["n1@h1[0,28)", "n2@h1[0,28)", "n3@~h3[0,28)"]
    assert summarize(registry(*claims), KEY).distinct_hosts == 1
    assert summarize(registry(*claims, accept_declared_hosts=True), KEY).distinct_hosts == 2


def test_a_recipe_that_nobody_offered_is_unknown_and_empty():
    found = summarize(registry("n1[0,28)"), "0" * 64)
    assert (found.status, found.layer_count, found.claims) == ("unknown", 0, 0)
    assert (found.replicas, found.gaps, found.proven_seams) == ((), (), ())
    for route in (found.serving, found.certifying):
        assert isinstance(route, NoRoute)
        assert route.codes == ("unknown-recipe",)
