"""Real node processes, a real model, real forwards: what certifies a recipe and what does not."""

import hashlib
import signal

import pytest

from backend_kit import greedy
from cli_kit import realm_up

PROMPT = "a mesh of shards"


def start_all(nodes, **layers_of):
    """Enrol and start nodes side by side, each on a host of its own."""
    for name in layers_of:
        nodes.enrol(name)
    started = {
        name: nodes.start(name, layers, host=f"host of {name}")
        for name, layers in layers_of.items()
    }
    for served in started.values():
        served.told("verdict")
    return started


def certify(nodes, by, *arguments, code=0):
    return nodes.cli(
        "node", "certify", "--recipe", nodes.recipe["recipe_key"], "--tokens", "4",
        "--dir", nodes.home / by, "-o", "json", *arguments, code=code,
    )  # fmt: skip


def generate(nodes, *, code=0):
    return nodes.cli(
        "generate", "--recipe", nodes.recipe["recipe_key"], "--tokens", "8", PROMPT,
        "-o", "json", code=code,
    )  # fmt: skip


def whole_model_says(nodes, count, prompt_ids=None):
    """The tokens of the whole model in this process, uncut."""
    from meshnet_node.backends.reference import ReferenceBackend

    shard = ReferenceBackend().load([nodes.model], start=0, end=6, device="cpu")
    ids = shard.encode(PROMPT) if prompt_ids is None else prompt_ids
    return [step.token for step in greedy(shard.open(0, 6), ids, count)]


def digest_of(ids):
    return hashlib.sha256(b"".join(one.to_bytes(4, "little") for one in ids)).hexdigest()


def test_two_processes_certify_a_recipe_and_then_serve_what_the_whole_model_says(nodes):
    start_all(nodes, ada="0:3", bob="3:6")
    assert nodes.recipe["status"] == "dark"
    dark = generate(nodes, code=1)
    assert "not-certified" in dark.err
    said = certify(nodes, "ada").json
    assert said["recipe_status"] == "certified"
    assert [one["attested"] for one in said["participants"]] == [True, True]
    labels = [one["label"] for one in said["participants"]]
    assert labels == [nodes.label("ada"), nodes.label("bob")]
    assert said["tokens_generated"] == 4
    # what anybody who holds the whole model can check without trusting a node
    prompt, tokens = said["prompt_ids"], said["token_ids"]
    assert tokens == whole_model_says(nodes, 4, prompt)
    assert digest_of(prompt + tokens[:-1]) == said["input_digest"]
    assert digest_of(tokens) == said["output_digest"]
    assert nodes.recipe["status"] == "certified"
    assert generate(nodes).json["token_ids"] == whole_model_says(nodes, 8)
    kinds = [record["type"] for record in nodes.log()]
    assert kinds.count("io.meshnet.handshake.completed.v1") == 2
    assert kinds.count("io.meshnet.forward.attested.v1") == 2
    assert certify(nodes, "ada").json["prompt_ids"] != prompt, "a challenge that nobody can know"


@pytest.mark.slow
def test_three_processes_with_overlapping_ranges_certify(nodes):
    start_all(nodes, ada="0:3", bob="2:5", cyd="3:6")
    nodes.cli("admin", "policy", "set", "--min-certifying-nodes", "3")
    try:
        said = certify(nodes, "bob").json
    finally:
        nodes.cli("admin", "policy", "set", "--min-certifying-nodes", "2")
    assert said["recipe_status"] == "certified"
    assert [(one["start"], one["end"]) for one in said["participants"]] == [(0, 3), (3, 5), (5, 6)]
    assert generate(nodes).json["token_ids"] == whole_model_says(nodes, 8)


@pytest.mark.slow
def test_five_processes_certify(nodes):
    start_all(nodes, ada="0:1", bob="1:2", cyd="2:3", dee="3:4", eve="4:6")
    said = certify(nodes, "eve").json
    assert said["recipe_status"] == "certified"
    assert len(said["seams"]) == 4
    assert generate(nodes).json["token_ids"] == whole_model_says(nodes, 8)


def test_two_processes_on_one_host_never_certify_under_the_default_policy(
    tmp_path_factory, require, nodes_of
):
    require("nats-server")
    with realm_up(tmp_path_factory.mktemp("realm")) as default:
        nodes = nodes_of(default)
        for name, layers in (("ada", "0:3"), ("bob", "3:6")):
            nodes.enrol(name)
            nodes.serve(name, layers, host=None)
        ran = certify(nodes, "ada", code=1)
        assert "hosts: a certifying route needs 2 distinct hosts" in ran.err
        assert nodes.recipe["status"] == "dark"


def test_a_hop_that_was_killed_certifies_nothing_and_a_user_is_served_by_another(nodes):
    started = start_all(nodes, ada="0:3", bob="3:6", cyd="3:6")
    certify(nodes, "ada")
    first = generate(nodes).json["nodes"]
    lost = next(name for name in ("bob", "cyd") if nodes.keys[name] in first)
    started[lost].kill(signal.SIGKILL)
    again = generate(nodes)
    assert nodes.keys[lost] not in again.json["nodes"]
    assert again.json["token_ids"] == whole_model_says(nodes, 8)
    assert f"({nodes.label(lost)}): hop-lost" in again.err


def test_a_stranger_who_is_no_node_of_the_realm_gets_nothing_attested(nodes):
    start_all(nodes, ada="0:3", bob="3:6")
    nodes.cli("node", "init", "--dir", nodes.home / "eve", "-o", "json")
    ran = certify(nodes, "eve", code=1)
    assert "unknown-peer" in ran.err
    assert nodes.recipe["status"] == "dark"
