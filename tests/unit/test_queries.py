"""Queries and their answers: every name, every error, and bytes that are neither."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import LABELS, LAYERS, R, Scenario, boot_of, digest, fingerprint_of, identity_block
from meshnet_events import queries
from meshnet_events.answers import (
    ClaimAnswer,
    ClockAnswer,
    HeadAnswer,
    NodeAnswer,
    PlanAnswer,
    RecipeAnswer,
)
from meshnet_events.facts import recipe_key
from meshnet_events.keys import EventKey
from meshnet_events.presence import Presence
from meshnet_events.queries import (
    ANSWERS,
    MAX_ANSWER,
    MAX_QUERY,
    QUERIES,
    QUERY_ERRORS,
    QUERY_NAMES,
    ClaimQuery,
    ClockQuery,
    HeadQuery,
    NodeQuery,
    PlanQuery,
    QueryError,
    RecipeQuery,
    Reply,
    decode_query,
    decode_reply,
)
from meshnet_tracker.api import answers
from meshnet_tracker.api.answers import answer_from
from meshnet_tracker.presence import PresenceOverlay, boots_in
from strategies import json_values

ENCODE = queries.encode


class Tracker:
    """Answers from a scenario's state, with or without presence."""

    def __init__(self):
        self.lab = Scenario()
        self.overlay = PresenceOverlay(boots_in(lambda: self.lab.state), lambda: 0.0)

    def hear(self, *nodes):
        for node in nodes:
            boot = boot_of(node, self.lab.boots.get(node, "b1"))
            said = Presence(boot_id=boot, load=0, shards=("main",))
            self.overlay.hear(self.lab.public(node), said)

    def ask(self, query, *, presence=False):
        """What comes back, taken through the bytes of both sides."""
        name = queries.name_of(query)
        heard = decode_query(name, ENCODE(query))
        assert heard == query
        found = answer_from(self.lab.state, heard, self.overlay if presence else None)
        reply = (
            Reply(sequence=9, error=found)
            if isinstance(found, QueryError)
            else Reply(sequence=9, answer=found)
        )
        read = decode_reply(query, ENCODE(reply))
        assert read == reply
        return read.answer or read.error


@pytest.fixture
def tracker():
    return Tracker()


def certified(tracker):
    tracker.lab.certify("n1@h1[0,14)", "n2@h2[14,28)")
    return tracker.lab


# -- answers -------------------------------------------------------------------------------------


def test_a_claim_is_told_with_its_verdict(tracker):
    lab = certified(tracker)
    answer = tracker.ask(ClaimQuery(node=lab.public("n2"), shard_id="main"))
    assert isinstance(answer, ClaimAnswer)
    assert (answer.start, answer.end, answer.status) == (14, LAYERS, "live")
    assert (answer.recipe_key, answer.recipe_status) == (R.key, "certified")
    assert (answer.eligible_to_serve, answer.eligible_to_certify) == (True, True)
    assert (answer.reasons, answer.presence, answer.refusal) == ((), False, None)
    assert answer.endpoint == "grpc://n2.example:7001"
    assert answer.registered_sequence == lab.claim("n2").sequence
    assert answer.fingerprint.model_artifact_digest == R.artifact
    assert answer.fingerprint.runtime_recipe_digest == R.recipe
    assert answer.fingerprint.recipe_id == LABELS["recipe_id"]


def test_a_claim_is_not_live_until_it_is_heard(tracker):
    lab = certified(tracker)
    query = ClaimQuery(node=lab.public("n1"), shard_id="main")
    silent = tracker.ask(query, presence=True)
    assert (silent.presence, silent.reasons, silent.eligible_to_serve) == (
        True,
        ("not-live",),
        False,
    )
    tracker.hear("n1")
    assert tracker.ask(query, presence=True).eligible_to_serve


def test_a_claim_whose_identity_has_a_fault_has_no_recipe(tracker):
    block = identity_block(0, 14)
    block["shard_end"] = 99
    tracker.lab.register("n1@h1[0,14)", block=block)
    answer = tracker.ask(ClaimQuery(node=tracker.lab.public("n1"), shard_id="main"))
    assert (answer.status, answer.refusal, answer.reasons) == (
        "refused",
        "bad-identity",
        ("refused",),
    )
    assert answer.refusal_detail
    assert (answer.recipe_key, answer.fingerprint, answer.start, answer.end) == (None,) * 4
    assert answer.recipe_status == "unknown"


def test_a_claim_that_nobody_made_is_not_found(tracker):
    lab = certified(tracker)
    for query in (
        ClaimQuery(node=lab.public("n1"), shard_id="other"),
        ClaimQuery(node=lab.public("stranger"), shard_id="main"),
    ):
        assert tracker.ask(query).code == "not-found"


def test_a_node_is_told_with_the_head_of_its_chain(tracker):
    lab = tracker.lab
    lab.enrol("n1", group="g", label="first")
    lab.register("n1@h1[0,14)")
    answer = tracker.ask(NodeQuery(node=lab.public("n1")))
    assert isinstance(answer, NodeAnswer)
    assert (answer.head_issuerseq, answer.head_digest) == (1, lab.heads["n1"].digest)
    assert answer.head_sequence == lab.records[-1].sequence
    assert (answer.group, answer.label, answer.status) == ("g", "first", "enrolled")
    assert (answer.boot_id, answer.may_speak) == (boot_of("n1", "b1"), True)
    assert answer.shards == ("main",)


def test_a_node_is_told_with_the_ids_of_its_live_claims_and_no_more_than_fit(tracker):
    lab = tracker.lab
    for number in range(300):
        lab.register(f"n1/s{number:03}@h1[0,14)")
    lab.withdraw("n1", "s000")
    query = NodeQuery(node=lab.public("n1"))
    answer = tracker.ask(query)
    assert answer.shards == tuple(f"s{number:03}" for number in range(1, 257))
    assert "shards" in answered(query, answer, shards=[*answer.shards, "main"])


def test_a_key_that_nobody_heard_of_is_unknown_and_not_an_error(tracker):
    answer = tracker.ask(NodeQuery(node=tracker.lab.public("stranger")))
    assert (answer.status, answer.may_speak, answer.boot_id) == ("unknown", False, None)
    assert (answer.head_issuerseq, answer.head_digest, answer.head_sequence) == (0, "0" * 64, 0)


def test_who_may_speak_follows_the_policy_and_the_node(tracker):
    lab = tracker.lab
    lab.register("n1@h1[0,14)")

    def told(name):
        answer = tracker.ask(NodeQuery(node=lab.public(name)))
        return answer.status, answer.may_speak

    lab.register("n1@other[0,14)")
    assert told("n1") == ("conflict", True), "conflict bars claims, not the word"
    lab.suspend("n1")
    assert told("n1") == ("suspended", False)
    assert told("operator") == ("not-enrolled", False)
    lab.policy(enrolment="open")
    assert told("operator") == ("not-enrolled", True)
    assert told("stranger") == ("unknown", True)


def test_a_route_is_planned_hop_by_hop(tracker):
    lab = certified(tracker)
    lab.enrol("n2", label="second")
    answer = tracker.ask(PlanQuery(recipe=R.key[:8], purpose="serve"))
    assert isinstance(answer, PlanAnswer)
    assert answer.obstacles == ()
    assert [(hop.node, hop.start, hop.end) for hop in answer.hops] == [
        (lab.public("n1"), 0, 14),
        (lab.public("n2"), 14, LAYERS),
    ]
    assert answer.hops[1].label == "second"
    assert answer.hops[1].boot_id == boot_of("n2", "b1")
    assert (answer.layer_count, answer.recipe_key, answer.purpose) == (LAYERS, R.key, "serve")
    assert answer.fingerprint.model_artifact_digest == R.artifact


def test_a_hop_that_overlaps_starts_where_the_one_before_stopped(tracker):
    tracker.lab.register("n1@h1[0,20)")
    tracker.lab.register("n2@h2[8,28)")
    answer = tracker.ask(PlanQuery(recipe=R.key, purpose="certify"))
    assert [(hop.start, hop.end) for hop in answer.hops] == [(0, 20), (20, LAYERS)]


def test_a_route_names_no_excluded_node_and_none_that_is_not_live(tracker):
    lab = certified(tracker)
    excluding = PlanQuery(recipe=R.key, purpose="serve", exclude=(lab.public("n2"),))
    assert [one.code for one in tracker.ask(excluding).obstacles] == ["range"]
    query = PlanQuery(recipe=R.key, purpose="serve")
    tracker.hear("n1")
    answer = tracker.ask(query, presence=True)
    assert (answer.hops, answer.obstacles[0].code) == ((), "range")
    assert f"[14, {LAYERS})" in answer.obstacles[0].detail
    (silent,) = [one.detail for one in answer.obstacles if one.code == "not-live"]
    assert silent.startswith(f"{lab.state.nodes[lab.public('n2')].label or 'U'}")
    assert f"/main [14, {LAYERS}) has not been heard of for 15 s" in silent
    tracker.hear("n2")
    assert len(tracker.ask(query, presence=True).hops) == 2


def test_a_recipe_is_told_with_the_sentence_that_explains_it(tracker):
    lab = certified(tracker)
    answer = tracker.ask(RecipeQuery(recipe=R.key))
    assert isinstance(answer, RecipeAnswer)
    assert (answer.status, answer.proven_seams, answer.layer_count) == ("certified", (14,), LAYERS)
    assert answer.certified_time_ms == lab.recipe().certification.time_ms
    assert answer.why.startswith("certified at ")
    lab.revoke()
    revoked = tracker.ask(RecipeQuery(recipe=R.key))
    assert (revoked.status, revoked.certified_time_ms, revoked.proven_seams) == (
        "revoked",
        None,
        (),
    )


@pytest.mark.parametrize("recipe", [R.key[:8], R.key[:63], R.key])
def test_a_recipe_goes_by_any_prefix_of_eight_or_more(tracker, recipe):
    certified(tracker)
    assert tracker.ask(RecipeQuery(recipe=recipe)).recipe_key == R.key
    assert tracker.ask(PlanQuery(recipe=recipe, purpose="serve")).recipe_key == R.key


def test_a_prefix_that_fits_none_or_several_is_told_apart(tracker):
    lab = certified(tracker)
    other = R.key[:8] + digest("another recipe")[8:]
    lab.state.recipes[other] = lab.recipe()
    for make in (
        lambda recipe: RecipeQuery(recipe=recipe),
        lambda recipe: PlanQuery(recipe=recipe, purpose="certify"),
    ):
        assert tracker.ask(make(digest("nothing"))).code == "not-found"
        assert tracker.ask(make(R.key[:8])).code == "ambiguous"
        assert tracker.ask(make(R.key)).recipe_key == R.key


def test_the_longest_labels_that_are_admitted_leave_the_answer_readable(tracker):
    labels = {"catalogue_version": "é" * 1_024}
    tracker.lab.register("n1@h1[0,14)", labels=labels)
    assert tracker.lab.claim("n1").status == "live"
    key = fingerprint_of(identity_block(0, 14, labels=labels)).key
    for query in (
        RecipeQuery(recipe=key),
        ClaimQuery(node=tracker.lab.public("n1"), shard_id="main"),
    ):
        assert tracker.ask(query).fingerprint.catalogue_version == labels["catalogue_version"]


# -- bytes ---------------------------------------------------------------------------------------

KEY = Scenario().public("n1")
GOOD = {
    "claim": {"node": KEY, "shard_id": "main"},
    "node": {"node": KEY},
    "head": {"node": KEY},
    "plan": {"recipe": R.key, "purpose": "serve", "exclude": [KEY]},
    "recipe": {"recipe": R.key},
    "clock": {},
}


def test_every_name_has_a_query_an_answer_and_an_example_here():
    assert set(QUERY_NAMES) == set(QUERIES) == set(ANSWERS) == set(GOOD)
    for name, query in GOOD.items():
        read = decode_query(name, json.dumps({**query, "min_sequence": 7}).encode())
        assert (type(read), read.min_sequence) == (QUERIES[name], 7)


@pytest.mark.parametrize("name", QUERY_NAMES)
@pytest.mark.parametrize("more", [{"x": 1}, {"min_sequence": -1}, {"min_sequence": 2**53},
                                  {"min_sequence": "1"}, {"min_sequence": 1.0}])  # fmt: skip
def test_a_member_that_is_not_known_or_not_of_its_form_is_a_bad_query(name, more):
    assert decode_query(name, json.dumps({**GOOD[name], **more}).encode()).code == "bad-query"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("claim", {"node": "U" * 56}),
        ("claim", {"node": KEY.lower()}),
        ("claim", {"shard_id": "Main"}),
        ("claim", {"shard_id": None}),
        ("node", {"node": KEY[:-1]}),
        ("head", {"node": KEY.lower()}),
        ("plan", {"purpose": "both"}),
        ("plan", {"exclude": [KEY, "U" * 56]}),
        ("plan", {"exclude": KEY}),
        ("plan", {"recipe": R.key[:7]}),
        ("recipe", {"recipe": R.key[:7]}),
        ("recipe", {"recipe": R.key + "0"}),
        ("recipe", {"recipe": "ABCDEF01"}),
        ("recipe", {"recipe": "no hex, it is"}),
    ],
)
def test_a_key_a_shard_or_a_prefix_of_another_form_is_a_bad_query(name, change):
    error = decode_query(name, json.dumps({**GOOD[name], **change}).encode())
    assert error.code == "bad-query"
    assert error.detail


@pytest.mark.parametrize("name", QUERY_NAMES)
@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"[" * MAX_QUERY,
        b'{"node":' + b"[" * 8_000,
        b'{"recipe":"\\ud800aaaaaaaa"}',
        b'{"min_sequence":' + b"9" * 5_000 + b"}",
        b'{"min_sequence":NaN}',
        b"null",
        b'"claim"',
        b" " * (MAX_QUERY + 1),
    ],
)
def test_no_bytes_are_more_than_a_bad_query(name, body):
    error = decode_query(name, body)
    assert isinstance(error, QueryError)
    assert error.code == "bad-query"
    assert error.code in QUERY_ERRORS


@given(st.sampled_from(QUERY_NAMES), st.binary(max_size=200) | json_values.map(
    lambda value: json.dumps(value).encode()))  # fmt: skip
def test_reading_a_query_or_a_reply_never_raises(name, body):
    assert isinstance(decode_query(name, body), (queries.Query, QueryError))
    query = decode_query(name, json.dumps(GOOD[name]).encode())
    assert isinstance(decode_reply(query, body), str)


CLOCK = ClockQuery()


def test_an_answer_may_say_more_than_is_known_but_nothing_else():
    good = {"sequence": 4, "answer": {"time_ns": 5}}
    read = decode_reply(CLOCK, json.dumps(good).encode())
    assert read == Reply(sequence=4, answer=ClockAnswer(5))
    more = {**good, "x": [1], "answer": {"time_ns": 5, "y": {"z": None}}}
    assert decode_reply(CLOCK, json.dumps(more).encode()) == read
    for bad, why in (
        ({"sequence": 4}, "expected either an answer or an error"),
        ({**good, "error": {"code": "behind", "detail": ""}}, "either an answer or an error"),
        ({**good, "sequence": -1}, ">= 0 - at `$.sequence`"),
        ({**good, "sequence": "4"}, "at `$.sequence`"),
        ({"answer": {"time_ns": 5}}, "missing required field `sequence`"),
        ({**good, "answer": {"time_ns": "5"}}, "at `$.answer.time_ns`"),
        ({**good, "answer": {"time_ns": 5.5}}, "at `$.answer.time_ns`"),
        ({**good, "answer": {}}, "missing required field `time_ns`"),
        ({**good, "answer": []}, "at `$.answer`"),
        ({"sequence": 4, "error": {"code": 1, "detail": ""}}, "at `$.error.code`"),
    ):
        said = decode_reply(CLOCK, json.dumps(bad).encode())
        assert isinstance(said, str), bad
        assert why in said


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"sequence":1,"x":' + b"[" * 60_000, "nests too deep"),
        (b'{"sequence":1,"answer":{"time_ns":1,"x":' + b'{"a":' * 12_000, "nests too deep"),
        (b'{"sequence":1,"answer":{"time_ns":1}}' + b" " * MAX_ANSWER, "more than 63,488 bytes"),
        (b"", "truncated"),
        (b"\xff", "malformed"),
    ],
)
def test_no_bytes_of_a_tracker_are_more_than_no_answer(body, why):
    assert why in decode_reply(CLOCK, body)


@pytest.mark.parametrize(
    "spelling", [b'{"event":{"z":1, "a":2},"sig":"x"}', b"{ }", b'{"a":"\\u0041"}']
)
def test_the_message_at_a_head_is_carried_as_it_is(spelling):
    answer = HeadAnswer(body=msgspec.Raw(spelling), head_sequence=3, node=KEY)
    read = decode_reply(HeadQuery(node=KEY), queries.encode(Reply(sequence=9, answer=answer)))
    assert bytes(read.answer.body) == spelling
    assert read.answer.head_sequence == 3


@pytest.mark.parametrize("body", [b"null", b"[]", b'"{}"', b"7"])
def test_a_message_that_is_no_object_is_no_answer(body):
    told = b'{"sequence":9,"answer":{"body":%b,"head_sequence":3,"node":"%b"}}' % (
        body,
        KEY.encode(),
    )
    assert "body: not of its form" in decode_reply(HeadQuery(node=KEY), told)


@pytest.mark.parametrize(
    ("member", "other"),
    [
        ("node", "U" * 56),
        ("boot_id", "b" * 36),
        ("endpoint", "http://n1:1"),
        ("shard_id", "Main"),
        ("recipe_key", "X" * 64),
        ("recipe_key", "3" * 64),
        ("recipe_key", None),
        ("fingerprint", None),
        ("status", "x" * 129),
        ("reasons", ["dark"] * 33),
        ("refusal_detail", "x" * 4_097),
        ("host", {"id": "X" * 64, "source": "machine-id"}),
        ("host", {"id": "a" * 64, "source": "elsewhere"}),
        ("start", "0"),
        ("start", -1),
        ("end", 2**32),
        ("reasons", "dark"),
        ("fingerprint", {"catalogue_version": "1"}),
    ],
)
def test_a_claim_of_another_form_is_no_answer(tracker, member, other):
    lab = certified(tracker)
    query = ClaimQuery(node=lab.public("n1"), shard_id="main")
    answer = json.loads(ENCODE(tracker.ask(query)))
    body = json.dumps({"sequence": 1, "answer": answer}).encode()
    assert isinstance(decode_reply(query, body), Reply)
    answer[member] = other
    said = decode_reply(query, json.dumps({"sequence": 1, "answer": answer}).encode())
    assert isinstance(said, str)
    assert member in said or "$.answer" in said


def test_a_route_is_either_hops_or_obstacles(tracker):
    certified(tracker)
    query = PlanQuery(recipe=R.key, purpose="serve")
    answer = json.loads(ENCODE(tracker.ask(query)))
    for change in ({"hops": []}, {"obstacles": [{"code": "range", "detail": "x"}]}):
        body = json.dumps({"sequence": 1, "answer": {**answer, **change}}).encode()
        assert "hops, obstacles: expected one of them empty" in decode_reply(query, body)


def answered(query, answer, **change):
    """What is read from `answer` with some members changed."""
    told = {**json.loads(ENCODE(answer)), **change}
    return decode_reply(query, json.dumps({"sequence": 1, "answer": told}).encode())


def other_recipe():
    """The members that name a recipe, of another one."""
    fingerprint = identity_block(axes={"kv_dtype": "another"})["fingerprint"]
    digests = (fingerprint["model_artifact_digest"], fingerprint["runtime_recipe_digest"])
    return {"fingerprint": fingerprint, "recipe_key": recipe_key(*digests)}


OTHER_NODE = EventKey(bytes(range(1, 33))).public


@pytest.mark.parametrize(
    ("ask", "change"),
    [
        (lambda node: ClaimQuery(node=node, shard_id="main"), {"node": OTHER_NODE}),
        (lambda node: ClaimQuery(node=node, shard_id="main"), {"shard_id": "spare"}),
        (lambda node: NodeQuery(node=node), {"node": OTHER_NODE}),
        (lambda _: RecipeQuery(recipe=R.key), other_recipe()),
        (lambda _: RecipeQuery(recipe=R.key[:8]), other_recipe()),
        (lambda _: PlanQuery(recipe=R.key[:8], purpose="serve"), other_recipe()),
        (lambda _: PlanQuery(recipe=R.key, purpose="serve"), {"purpose": "certify"}),
    ],
)
def test_what_is_about_something_else_is_no_answer(tracker, ask, change):
    query = ask(certified(tracker).public("n1"))
    answer = tracker.ask(query)
    assert answered(query, answer) == Reply(sequence=1, answer=answer)
    assert answered(query, answer, **change) == "it answers another question"


def test_the_head_of_another_node_is_no_answer():
    body = msgspec.Raw(b"{}")
    answer = HeadAnswer(body=body, head_sequence=3, node=KEY)
    assert answered(HeadQuery(node=KEY), answer).answer.node == KEY
    assert answered(HeadQuery(node=OTHER_NODE), answer) == "it answers another question"


def test_a_route_over_a_node_that_was_to_be_left_out_is_no_answer(tracker):
    lab = certified(tracker)
    answer = tracker.ask(PlanQuery(recipe=R.key, purpose="serve"))
    without = PlanQuery(recipe=R.key, purpose="serve", exclude=(lab.public("n2"),))
    assert answered(without, answer) == "it answers another question"


@pytest.mark.parametrize(
    "query", [RecipeQuery(recipe=R.key), PlanQuery(recipe=R.key, purpose="serve")]
)
def test_a_fingerprint_that_has_another_recipe_key_is_no_answer(tracker, query):
    certified(tracker)
    answer = tracker.ask(query)
    other = other_recipe()["fingerprint"]
    assert "does not follow" in answered(query, answer, fingerprint=other)


@pytest.mark.parametrize(
    "layers",
    [
        ((1, 14), (14, LAYERS)),
        ((0, 14), (14, LAYERS - 1)),
        ((0, 14), (14, LAYERS + 1)),
        ((0, 13), (14, LAYERS)),
        ((0, 15), (14, LAYERS)),
        ((0, LAYERS), (LAYERS, LAYERS)),
        ((0, LAYERS + 5), (LAYERS + 5, LAYERS)),
        ((-4, 14), (14, LAYERS)),
        ((0, 2**32), (2**32, LAYERS)),
    ],
)
def test_a_route_that_has_not_every_layer_once_is_no_answer(tracker, layers):
    certified(tracker)
    query = PlanQuery(recipe=R.key, purpose="serve")
    answer = tracker.ask(query)
    hops = json.loads(ENCODE(answer.hops))
    assert len(hops) == len(layers)
    for hop, (start, end) in zip(hops, layers, strict=True):
        hop.update(start=start, end=end)
    said = answered(query, answer, hops=hops)
    assert "not all layers of the model" in said or "Expected `int`" in said


def test_what_a_tracker_lists_at_length_is_cut_and_not_refused(tracker):
    """Gaps and reasons of a recipe with very many layers still make an answer."""
    lab, layers = tracker.lab, 2_000
    for index in range(0, layers, 4):
        lab.register(f"n/s{index}@h1[{index},{index + 1})", layers=layers)
    (recipe,) = lab.state.recipes
    answer = tracker.ask(PlanQuery(recipe=recipe, purpose="certify"))
    gaps = answer.obstacles[0].detail
    assert gaps.startswith("no usable claim holds layers [1, 4)")
    assert (len(gaps), gaps[-1]) == (4_096, "…")
    why = tracker.ask(RecipeQuery(recipe=recipe)).why
    assert (len(why), why[-1]) == (4_096, "…")


def test_of_very_many_obstacles_the_first_are_told(tracker, monkeypatch):
    monkeypatch.setattr(answers, "MAX_OBSTACLES", 3)
    lab = tracker.lab
    for index in range(8):
        lab.register(f"n{index}@h{index}[0,14)")
    answer = tracker.ask(PlanQuery(recipe=R.key, purpose="certify"), presence=True)
    assert len(answer.obstacles) == 3


@pytest.mark.parametrize("query", QUERIES.values())
def test_every_query_says_what_an_answer_to_it_is(query):
    assert query.is_answered_by is not queries.Query.is_answered_by


def test_a_query_that_is_none_is_quoted_to_no_great_length():
    long = decode_query("node", b'{"%s":1}' % (b"x" * 9_000))
    assert len(long.detail) == 4_096
    assert decode_reply(NodeQuery(node=KEY), ENCODE(Reply(sequence=0, error=long))).error == long
    reply = b'{"sequence":1,"answer":{"purpose":"%s"}}' % (b"x" * 9_000)
    assert len(decode_reply(PlanQuery(recipe=R.key, purpose="serve"), reply)) <= 4_096
