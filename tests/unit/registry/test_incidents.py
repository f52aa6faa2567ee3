"""Failures that users of comparable systems reported, as scenarios with the right verdict.

The scenarios are played and judged as `incidents.json` spells them. What the registry cannot judge
is named in `ELSEWHERE`, with the part that does.
"""

import json
import re
from pathlib import Path

import pytest

from kit import LAYERS, R, Scenario, Shard, fingerprint_of, identity_block
from meshnet_events.presence import Presence
from meshnet_tracker.metrics import TrackerMetrics
from meshnet_tracker.presence import PresenceOverlay, boots_in
from meshnet_tracker.recipe import explain
from meshnet_tracker.registry.coverage import cover
from meshnet_tracker.registry.eligibility import judge
from meshnet_tracker.registry.routing.plan import NoRoute, Route, plan

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[2] / "data" / "incidents.json").read_text())[
        "cases"
    ]
}
# the doctor compares what is declared with what runs; pinning derives the tokenizer revision from the
# file; a session is bound to the boot that opened it
ELSEWHERE = {
    "version-of-another-binary": "unit/test_incidents_node.py",
    "same-weights-other-pretokenizer": "unit/test_incidents_node.py",
    "peer-restarted-same-address": "integration/test_incidents_session.py",
}
# the node compares fingerprints before a session
VERDICTS_ELSEWHERE = {
    ("protocol-patch-differs", "handshake"): "integration/test_incidents_session.py",
}

# the incidents' words for why there is no route, as the code and what its sentence must say
NO_ROUTE_BECAUSE = {
    "a certifying route needs two distinct hosts; one hop already covers the model": (
        "hosts",
        "2 distinct hosts",
    ),
    "seam 20 is not proven": ("seam", "20 is not proven"),
}


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
def test_the_incident_has_the_right_verdict(name):
    case = CASES[name]
    incident = Incident()
    for step in case["given_when"]:
        incident.play(step)
    for verdict in case["then"]:
        if (name, next(iter(verdict))) in VERDICTS_ELSEWHERE:
            continue
        if "withdraw" in verdict:
            incident.play(verdict)
        else:
            incident.judge(verdict)


def test_every_incident_is_played_here_or_has_its_place_elsewhere():
    assert set(ELSEWHERE) < set(CASES)
    for name, kind in VERDICTS_ELSEWHERE:
        assert any(kind in verdict for verdict in CASES[name]["then"])
    by_name = ELSEWHERE | {name: where for (name, _), where in VERDICTS_ELSEWHERE.items()}
    for name, where in by_name.items():
        tests = (Path(__file__).parents[2] / where).read_text().split("\ndef ")
        tests = [test for part in tests for test in part.split("\nasync def ")]
        assert any(f'CASES["{name}"]' in test and test.startswith("test_") for test in tests), name


class Incident:
    """One scenario: its steps as events, its verdicts as questions to the registry."""

    def __init__(self):
        self.lab = Scenario()
        self.thens = []
        self.keys = []
        self.bodies = {}
        self.blocks = {}
        self.metrics = TrackerMetrics()
        self.now_s = 0.0
        self.liveness = None

    # -- steps ---------------------------------------------------------------------------------

    def play(self, step):
        (verb, stated), *rest = step.items()
        assert not rest
        getattr(self, f"_{verb}")(stated)

    def _register(self, stated):
        stated = dict(stated)
        start, end = stated.pop("range")
        node, shard_id = stated.pop("node"), stated.pop("shard_id", "main")
        text = f"{node}/{shard_id}@{stated.pop('host')}[{start},{end})"
        artifact = {
            name: stated.pop(name) for name in ("artifact_id", "revision") if name in stated
        }
        boot = stated.pop("boot", None)
        identity = {"artifact": artifact, **stated}
        self._registered(Shard.read(text), self.lab.register(text, boot=boot, **identity), identity)

    def _certified_route(self, shards):
        self.lab.certify(*shards)
        self._know(R.key)

    def _registered(self, shard, then, identity):
        self.thens.append(then)
        self.bodies[shard.node] = then.record.body
        block = identity_block(shard.start, shard.end, **identity)
        self.blocks[shard.node] = block
        self._know(fingerprint_of(block).key)

    def _know(self, key):
        if key not in self.keys:
            self.keys.append(key)

    def _withdraw(self, stated):
        self.thens.append(self.lab.withdraw(stated["node"]))

    def _policy(self, changes):
        self.thens.append(self.lab.policy(**changes))

    def _evidence(self, stated):
        forward = self.lab.evidence(*stated["hops"], tokens_generated=stated["tokens"])
        self.thens += [self.lab.attest(node, forward) for node in stated["attested_by"]]

    def _replay_old_event(self, what):
        assert what == "n1's registration, byte for byte"
        self.thens.append(self.lab.deliver(self.bodies["n1"], "n1"))

    def _handshake(self, stated):
        pair = (stated["from"], stated["to"])
        for node, (start, end) in zip(pair, ((0, 14), (14, 28)), strict=True):
            if node not in self.bodies:
                self._register({"node": node, "host": f"of{node}", "range": (start, end)})
        accepted = "presented" not in stated
        self.thens.append(self.lab.handshake(*pair, accepted=accepted))
        self.thens.append(self.lab.handshake(*pair[::-1], accepted=accepted, role="responder"))

    def _presence(self, stated):
        assert stated == "none for 16 s"
        state = self.lab.state
        self.liveness = PresenceOverlay(boots_in(lambda: state), lambda: self.now_s)
        claims = list(state.all_claims())
        for claim in claims:
            said = Presence(boot_id=claim.boot_id, load=0, shards=(claim.shard_id,))
            self.liveness.hear(claim.node, said)
        assert all(map(self.liveness.is_live, claims))
        self.now_s += 16

    # -- verdicts ------------------------------------------------------------------------------

    def judge(self, verdict):
        getattr(self, f"_is_{next(iter(verdict))}")(verdict)

    def _is_recipes(self, verdict):
        assert len(self.lab.state.recipes) == verdict["recipes"]

    def _is_recipe(self, verdict):
        key = {"R": self.keys[0], "old": self.keys[0], "new": self.keys[-1]}[verdict["recipe"]]
        assert self.lab.recipe(key).status == verdict["status"]

    def _is_route(self, verdict):
        state = self.lab.state
        routes = [
            plan(state, key, verdict["route"], liveness=self.liveness) for key in state.recipes
        ]
        if verdict["ok"]:
            route = routes[0]
            assert isinstance(route, Route), route
            if "through" in verdict:
                assert [hop.node for hop in route.hops] == [
                    self.lab.public(name) for name in verdict["through"]
                ]
            return
        for route in routes:
            assert isinstance(route, NoRoute)
            said = "; ".join(obstacle.detail for obstacle in route.obstacles)
            if "reason" in verdict:
                assert route.codes == (verdict["reason"],)
            if "gap" in verdict:
                assert route.codes == ("range",)
                assert "[{}, {})".format(*verdict["gap"]) in said
            if "because" in verdict:
                code, words = NO_ROUTE_BECAUSE[verdict["because"]]
                assert code in route.codes
                assert words in said

    def _is_explain(self, verdict):
        left, right = (self.blocks[node] for node in verdict["explain"])
        assert [one.reason for one in explain(left, right)] == verdict["reasons"]

    def _is_shard(self, verdict):
        node, _, shard_id = verdict["shard"].partition("/")
        claim = self.lab.claim(node, shard_id or "main")
        if "refused" in verdict:
            assert claim.refusal == verdict["refused"]
            assert verdict["field"] in claim.refusal_detail
            return
        eligibility = judge(self.lab.state, claim, self.liveness)
        assert (eligibility.to_serve or eligibility.to_certify) is verdict["eligible"]
        assert verdict["reason"] in eligibility.reasons

    def _is_node(self, verdict):
        assert self.lab.node(verdict["node"]).status == verdict["status"]

    def _is_because(self, verdict):
        assert verdict["because"] in self.thens[-1].detail

    def _is_coverage(self, verdict):
        state = self.lab.state
        (key,) = {claim.recipe_key for claim in state.all_claims()}
        live = state.live_claims[key].values()
        ranges = [(one.identity.shard_start, one.identity.shard_end) for one in live]
        held = [
            [one.start, one.end]
            for one in cover(ranges, state.recipes[key].layer_count).intervals
            if one.replicas
        ]
        assert held == verdict["coverage"]

    def _is_outcome(self, verdict):
        assert self.thens[-1].kind == verdict["outcome"]
        assert self.thens[-1].outcome == verdict["code"]

    def _is_events(self, verdict):
        assert [then.outcome for then in self.thens[-2:]] == ["applied", "applied"]
        assert len(verdict["events"]) == len(self.lab.state.handshakes)
        assert not any(row.accepted for row in self.lab.state.handshakes.values())

    def _is_pair(self, verdict):
        assert verdict["usable"] is False
        route = plan(self.lab.state, R.key, "certify")
        assert isinstance(route, NoRoute)
        assert route.codes == ("handshake",)
        for node in verdict["pair"]:
            assert self.lab.public(node) in route.obstacles[0].detail

    def _is_metric(self, verdict):
        name, result = re.fullmatch(r'(\w+)\{result="(\w+)"\}', verdict["metric"]).groups()
        self.metrics.count(self.lab.state.take_changes())
        counted = [
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.labels["result"] == result
        ]
        assert sum(counted) == len(self.lab.state.handshakes) > 0

    def _is_listed(self, verdict):
        assert verdict["listed"] is True
        assert self.lab.claim("n1").status == "live"
        assert self.lab.recipe().layer_count == LAYERS
