"""From a key to a route, as an operator and node owners do it, on one realm that is up meanwhile."""

import json
import signal
import subprocess
import time

import anyio
import pytest

from cli_kit import MESHNET, free_port
from kit import digest, identity_block
from meshnet_bus.client import closing, connect
from meshnet_bus.outbox import Outbox
from meshnet_events.facts import ShardWithdrawn
from meshnet_node.directory import NodeDirectory
from meshnet_node.key_file import read_key_file


def report_for(block, *, age_s=0.0, **changes):
    """What a doctor would say about exactly this block, now."""
    fingerprint = block["fingerprint"]
    return {
        "model": {
            "model_id": block["artifact"]["artifact_id"],
            "model_artifact_digest": fingerprint["model_artifact_digest"],
        },
        "shard": {"start": block["shard_start"], "end": block["shard_end"]},
        "recipe": {
            "recipe_id": fingerprint["recipe_id"],
            "recipe_version": fingerprint["recipe_version"],
            "runtime_recipe_digest": fingerprint["runtime_recipe_digest"],
        },
        "backend": {"backend_id": block["recipe"]["backend_id"], "device": "cpu"},
        "status": "passed",
        "validated_at": time.time() - age_s,
        "tokens": 4,
        "duration_ms": 12,
        **changes,
    }


class Owner:
    """A node's owner: a directory, and files that change."""

    def __init__(self, cli, name):
        self.cli, self.name = cli, name
        self.folder = cli.home / name
        self.key = cli("node", "init", "--dir", name, "--label", name, "-o", "json").json["node"]

    def enrol(self):
        self.cli("admin", "node", "enrol", f"{self.name}/enrol.json", "--group", f"g-{self.name}")
        return self

    def register(self, block, report=None, *options, code=0):
        identity, proof = self.folder / "identity.json", self.folder / "report.json"
        identity.write_text(json.dumps(block))
        proof.write_text(json.dumps(report_for(block) if report is None else report))
        return self.cli(
            "node", "register", "--dir", self.name, "--identity", identity, "--report", proof,
            "--endpoint", f"grpc://{self.name}.example:7001", "--declared-host", f"host-{self.name}",
            "-o", "json", *options, code=code,
        )  # fmt: skip


def newest(cli):
    """The stream's last sequence."""
    return cli("audit", "replay", "-o", "json").json["sequence"]


def test_a_recipe_arrives_dark_gets_a_route_to_certify_and_loses_it_to_a_withdrawal(realm):
    first, second = Owner(realm, "alpha").enrol(), Owner(realm, "beta").enrol()

    arrived = first.register(identity_block(0, 14), None, "--new-boot").json
    assert (arrived["status"], arrived["recipe_status"]) == ("live", "dark")
    assert (arrived["eligible_to_serve"], arrived["reasons"]) == (False, ["dark"])
    key = arrived["recipe_key"]
    second.register(identity_block(14, 28))

    listed = realm("recipe", "list", "-o", "json").json["recipes"]
    assert [(row["recipe_key"], row["status"]) for row in listed] == [(key, "dark")]
    assert (listed[0]["gaps"], listed[0]["distinct_hosts"]) == ([], 2)

    refused = realm("route", "why-not", key[:8], "-o", "json", code=1).json
    assert [obstacle["code"] for obstacle in refused["obstacles"]] == ["not-certified"]
    route = realm("route", "plan", key[:8], "--purpose", "certify", "-o", "json").json
    assert [hop["node"] for hop in route["hops"]] == [first.key, second.key]
    assert [hop["effective_end"] for hop in route["hops"]] == [14, 28]

    why = realm("shard", "why-not", "alpha/main", "-o", "json", code=1).json
    assert why["shard"]["reasons"] == ["dark"]
    assert why["why"][0].startswith("dark since sequence ")
    assert realm("shard", "diff", "alpha", "beta", "-o", "json").json["differences"] == []

    gone = realm("node", "withdraw", "--dir", "beta", "--reason", "maintenance", "-o", "json").json
    assert gone["status"] == "withdrawn"
    refused = realm("route", "plan", key[:8], "--purpose", "certify", "-o", "json", code=1).json
    assert refused["obstacles"][0]["code"] == "range"
    assert "[14, 28)" in refused["obstacles"][0]["detail"]
    assert "gap [14, 28)" in realm("recipe", "show", key).out

    # the tracker's views and the auditor's own folding say the same
    replayed = realm("audit", "replay", "-o", "json").json
    assert replayed["sequence"] == refused["sequence"] == gone["sequence"]
    assert {recipe["recipe_key"]: recipe["status"] for recipe in replayed["recipes"]} == {
        key: "dark"
    }
    assert replayed["claims"] == realm("shard", "list", "-o", "json").json["shards"]
    # and the auditor can go back
    assert realm("audit", "replay", "--to", 1, "-o", "json").json["claims"] == []
    assert (
        realm("audit", "replay", "--as-of", "2020-01-01T00:00:00Z", "-o", "json").json["sequence"]
        == 0
    )


def test_two_cuts_of_the_same_layers_are_compared_by_what_the_stream_says_of_them(realm):
    held = []
    for name in ("sound", "damaged"):
        cut = {"source_artifact_digest": digest("weights"), "shard_start": 0, "shard_end": 3}
        artifact = {"content_digest": digest(name), "derived_from": cut}
        Owner(realm, name).enrol().register(
            identity_block(0, 3, artifact=artifact), None, "--new-boot"
        )
        held.append({"content_digest": digest(name), "cut": [0, 3]})
    ask = ("shard", "diff", "sound", "damaged")
    assert realm(*ask, "-o", "json", code=1).json["files"] == held
    # views need no server, and do not say it
    away = (
        "--views", realm.home / "realm" / "views.db",
        "--server", f"nats://127.0.0.1:{free_port()}",
    )  # fmt: skip
    assert realm(*ask, *away, "-o", "json").json["files"] is None
    assert "whether their files differ is not known" in realm(*ask, *away).out


def test_a_proof_that_does_not_cover_what_is_offered_is_refused_before_anything_is_published(realm):
    owner = Owner(realm, "careless").enrol()
    block, before = identity_block(0, 14), newest(realm)
    other = identity_block(0, 14, axes={"kv_dtype": "f16"})

    for report, reason in (
        (report_for(identity_block(14, 28)), "shard-mismatch"),
        (report_for(block, age_s=3600), "stale"),
        (report_for(block, status="failed", diagnostics=["NaN at layer 3"]), "NaN at layer 3"),
        (report_for(other), "recipe-mismatch"),
    ):
        refused = owner.register(block, report, code=1)
        assert reason in refused.err
        assert "nothing was published" in refused.err
    assert newest(realm) == before


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda block: block["recipe"].pop("kv_dtype"), "kv_dtype"),
        (lambda block: block["artifact"].update(flavour="mint"), "unknown member"),
        (lambda block: block["artifact"].update(revision="main"), "artifact.revision"),
        (lambda block: block["fingerprint"].update(model_artifact_digest="0" * 64), "fingerprint"),
    ],
)
def test_a_faulty_identity_block_is_refused_and_the_member_named(realm, spoil, named):
    owner = realm.home / "faulty"
    if not owner.exists():
        Owner(realm, "faulty")
    block = identity_block()
    spoil(block)
    (owner / "identity.json").write_text(json.dumps(block))
    (owner / "report.json").write_text(json.dumps(report_for(identity_block())))
    refused = realm(
        "node", "register", "--dir", owner, "--identity", owner / "identity.json",
        "--report", owner / "report.json", "--endpoint", "grpc://x:1", code=1,
    )  # fmt: skip
    assert named in refused.err


def test_what_the_registry_refuses_after_storing_it_is_told_with_its_code(realm):
    refused = Owner(realm, "stranger").register(identity_block(0, 14), code=1)
    assert "not-enrolled" in refused.err
    assert f"sequence {newest(realm)}" in refused.err


def test_an_endpoint_that_is_none_is_a_usage_error(realm):
    owner = Owner(realm, "lost")
    block = identity_block()
    (owner.folder / "i.json").write_text(json.dumps(block))
    (owner.folder / "r.json").write_text(json.dumps(report_for(block)))
    refused = realm(
        "node", "register", "--dir", "lost", "--identity", "lost/i.json", "--report", "lost/r.json",
        "--endpoint", "http://nope", code=2,
    )  # fmt: skip
    assert "endpoint" in refused.err


def test_a_label_that_no_operator_could_accept_makes_no_key(realm):
    refused = realm("node", "init", "--dir", "wordy", "--label", "x" * 1025, code=2)
    assert "--label" in refused.err
    assert not (realm.home / "wordy").exists()


def test_a_file_that_is_no_request_is_refused_by_what_it_lacks(realm):
    owner = Owner(realm, "sloppy")
    request = owner.folder / "enrol.json"
    for content, code in ((b"{}", "bad-envelope"), (request.read_bytes() * 40, "oversize")):
        request.write_bytes(content)
        assert code in realm("admin", "node", "enrol", request, code=1).err


def test_a_forged_enrolment_request_is_refused(realm):
    owner = Owner(realm, "forger")
    request = owner.folder / "enrol.json"
    request.write_bytes(request.read_bytes().replace(b'"label":"forger"', b'"label":"mallory"'))
    before = newest(realm)
    refused = realm("admin", "node", "enrol", request, code=3)
    assert "did not sign" in refused.err
    assert newest(realm) == before


def test_a_key_that_is_no_operators_states_nothing(realm):
    owner = Owner(realm, "pretender")
    before = newest(realm)
    refused = realm(
        "admin", "node", "enrol", owner.key, "--key-file", owner.folder / "node.key", code=3
    )
    assert "no operator of lab" in refused.err
    assert newest(realm) == before


def test_an_operator_suspends_and_reinstates_a_node_by_its_label(realm):
    owner = Owner(realm, "gamma").enrol()
    owner.register(identity_block(0, 28, axes={"kv_dtype": "f32"}))
    suspended = realm("admin", "node", "suspend", "gamma", "--reason", "test", "-o", "json").json
    assert suspended["status"] == "suspended"
    assert "suspended" in owner.register(identity_block(0, 28), code=1).err
    back = realm("admin", "node", "reinstate", "gamma", "-o", "json").json
    assert back["status"] == "enrolled"
    # its old boot is history: it must restart
    assert "stale-boot" in owner.register(identity_block(0, 28), code=1).err
    assert owner.register(identity_block(0, 28), None, "--new-boot").json["status"] == "live"


def test_an_operator_revokes_and_reinstates_a_recipe(realm):
    owner = Owner(realm, "delta").enrol()
    key = owner.register(identity_block(0, 28, axes={"kv_dtype": "q4_0"})).json["recipe_key"]
    assert realm("admin", "recipe", "revoke", key[:10], "-o", "json").json["status"] == "revoked"
    assert realm("recipe", "explain", key, "-o", "json").json["status"] == "revoked"
    assert realm("admin", "recipe", "reinstate", key, "-o", "json").json["status"] == "dark"


def test_a_policy_is_changed_by_the_members_that_are_named(realm):
    before = realm("admin", "policy", "show", "-o", "json").json
    realm("admin", "policy", "set", "--min-distinct-groups", 2, "--reason", "two owners")
    after = realm("admin", "policy", "show", "-o", "json").json
    assert after == before | {"min_distinct_groups": 2}
    assert "least is 2" in realm("admin", "policy", "set", "--min-certifying-nodes", 1, code=2).err


def test_the_log_tells_every_record_with_its_outcome(realm):
    Owner(realm, "stranger-2").register(identity_block(0, 14), code=1)
    lines = [json.loads(row) for row in realm("log", "-o", "ndjson").out.splitlines()]
    assert [row["sequence"] for row in lines] == list(range(1, newest(realm) + 1))
    assert lines[0]["type"] == "io.meshnet.realm.created.v1"
    rejected = [row["code"] for row in lines if row["outcome"] == "rejected"]
    assert "not-enrolled" in rejected


def test_a_key_file_that_others_may_read_is_not_used(realm):
    owner = Owner(realm, "leaky")
    assert (owner.folder / "node.key").stat().st_mode & 0o777 == 0o600
    (owner.folder / "node.key").chmod(0o644)
    refused = realm("node", "withdraw", "--dir", "leaky", code=1)
    assert "others may read it" in refused.err


def test_a_node_key_is_never_written_over(realm):
    owner = Owner(realm, "twice")
    seed = (owner.folder / "node.key").read_bytes()
    assert "not written over" in realm("node", "init", "--dir", "twice", code=1).err
    assert (owner.folder / "node.key").read_bytes() == seed


def test_a_server_without_the_realm_is_not_found(realm):
    for command in (("recipe", "list"), ("audit", "replay"), ("log",)):
        refused = realm(*command, "--realm", "elsewhere", code=5).err
        assert "no such realm: 'elsewhere'" in refused


def test_following_the_log_ends_quietly_with_ctrl_c(realm):
    with subprocess.Popen(
        [*MESHNET, "log", "--follow", "-o", "ndjson"],
        env=realm.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert json.loads(process.stdout.readline())["sequence"] == 1
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def node_of(cli, key):
    return next(
        row for row in cli("audit", "replay", "-o", "json").json["nodes"] if row["node"] == key
    )


def test_enrolling_again_keeps_what_is_not_named_and_says_so(realm):
    owner = Owner(realm, "again").enrol()
    ran = realm("admin", "node", "enrol", owner.key)
    assert "was enrolled already" in ran.out
    assert "(nothing changed)" in ran.out
    assert "was enrolled already" in realm("admin", "node", "enrol", "again", "--group", "new").out
    assert (node_of(realm, owner.key)["label"], node_of(realm, owner.key)["group"]) == (
        "again",
        "new",
    )


@pytest.mark.parametrize(
    ("label", "code", "named"),
    [
        ("holder", 1, "is the label of U"),
        ("UBXWRLTRLWV6", 2, "looks like a key"),
        ("a\nb", 2, "cannot be printed"),
    ],
)
def test_a_label_that_would_mislead_is_refused(realm, label, code, named):
    if not (realm.home / "holder").exists():
        Owner(realm, "holder").enrol()
    name = f"mislead-{code}-{len(label)}"
    owner, before = Owner(realm, name), newest(realm)
    refused = realm("admin", "node", "enrol", owner.key, "--label", label, code=code)
    assert named in refused.err
    assert newest(realm) == before


def test_enrolling_a_suspended_node_says_what_would_lift_that(realm):
    owner = Owner(realm, "barred").enrol()
    assert "nothing changed" not in realm("admin", "node", "suspend", "barred").out
    assert "nothing changed" in realm("admin", "node", "suspend", "barred").out
    out = realm("admin", "node", "enrol", owner.key).out
    assert f"meshnet admin node reinstate {owner.key[:12]}" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_shard_that_was_never_registered_is_not_withdrawn(realm):
    owner, before = Owner(realm, "hasty"), newest(realm)
    refused = realm("node", "withdraw", "--dir", "hasty", code=5)
    assert "registered no shard 'main'" in refused.err
    assert "meshnet admin node enrol hasty/enrol.json" in refused.err
    assert newest(realm) == before
    refused = owner.register(identity_block(0, 14), code=1)
    assert "meshnet admin node enrol hasty/enrol.json" in refused.err


def test_a_shard_withdrawn_twice_is_said_to_have_changed_nothing_the_second_time(realm):
    owner = Owner(realm, "echo").enrol()
    owner.register(identity_block(0, 28, axes={"kv_dtype": "q5_1"}))
    assert "(nothing changed)" not in realm("node", "withdraw", "--dir", "echo").out
    assert "(nothing changed)" in realm("node", "withdraw", "--dir", "echo").out


def test_all_missing_members_of_an_identity_are_named_at_once(realm):
    owner = Owner(realm, "forgetful")
    block = identity_block(0, 14)
    report = report_for(block)
    for name in ("activation_dtype", "compute_dtype", "kv_layout"):
        del block["recipe"][name]
    refused = owner.register(block, report, code=1).err
    for name in ("activation_dtype", "compute_dtype", "kv_layout"):
        assert f"recipe.{name}" in refused
    assert "identity.json" in refused


def test_a_faulty_report_is_named_by_its_file(realm):
    refused = Owner(realm, "vague").register(identity_block(0, 14), {"status": "passed"}, code=1)
    assert "vague/report.json: " in refused.err


def test_a_directory_without_a_key_and_a_file_that_is_none_say_what_to_do(realm):
    assert "meshnet node init" in realm("node", "withdraw", "--dir", "nowhere", code=5).err
    text = realm.home / "README.md"
    text.write_text("# words\n")
    text.chmod(0o644)
    refused = realm("admin", "policy", "set", "--enrolment", "open", "--key-file", text, code=1)
    assert "not an NKey seed" in refused.err


def hand(realm, owner, fact):
    """Leave `fact` in the node's outbox, signed and not sent, as a crash would."""

    async def leave():
        node = NodeDirectory(owner.folder)
        async with (
            closing(await connect(realm.said["server"], name="test")) as nc,
            Outbox.open(node.outbox, nc, "lab", read_key_file(node.key_file)) as outbox,
        ):
            await outbox.hand(fact)

    anyio.run(leave)


def test_what_a_crash_left_unsent_is_sent_before_what_a_command_says(realm):
    owner = Owner(realm, "crashed").enrol()
    block = identity_block(0, 28, axes={"kv_dtype": "crashed"})
    first = owner.register(block, None, "--new-boot").json
    hand(realm, owner, ShardWithdrawn(boot_id=first["boot_id"], reason="pending", shard_id="main"))
    status = realm("node", "status", "--dir", "crashed", "-o", "json", code=1).json
    assert (status["unsent"], status["claims"][0]["status"]) == (1, "live")
    assert (
        "1, until the node serves again" in realm("node", "status", "--dir", "crashed", code=1).out
    )

    again = owner.register(block, None, "--new-boot").json
    assert (again["status"], again["sequence"]) == ("live", first["sequence"] + 2)
    log = [json.loads(row) for row in realm("log", "-o", "ndjson").out.splitlines()]
    said = [row for row in log if row["issuer"] == owner.key]
    assert [row["type"].split(".")[-2] for row in said] == ["registered", "withdrawn", "registered"]
    assert {row["outcome"] for row in said} == {"applied"}
    status = realm("node", "status", "--dir", "crashed", "-o", "json", code=1).json
    assert status["unsent"] == 0
