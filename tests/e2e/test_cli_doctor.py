"""`meshnet node doctor` and `meshnet node manifest`: real models, a real realm, and what goes wrong."""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
import uuid
from contextlib import asynccontextmanager

import pytest
from anyio.from_thread import start_blocking_portal

import third_party
from cli_kit import MESHNET, Cli, free_port
from meshnet_bus.client import closing, connect
from meshnet_bus.local_server import LocalServer
from meshnet_events.keys import EventKey
from meshnet_events.subjects import query
from meshnet_node.session.node import Node
from meshnet_node.session.responder import serve

OTHER = EventKey(bytes(32))


def write_model(folder, **how):
    from meshnet_node.backends.reference.tiny import write_tiny_llama

    return write_tiny_llama(folder / "tiny.gguf", **how)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, require):
    """A node's key, a model, and the manifest of it, made once and copied for each test."""
    require("numpy")
    cli = Cli(tmp_path_factory.mktemp("prepared"))
    model = write_model(cli.home)
    cli("node", "init", "--dir", "node")
    cli("node", "manifest", model, "--backend", "reference-numpy", "--output", "recipes.toml")
    return cli.home


@pytest.fixture
def node(meshnet, prepared):
    """A node with its key, a model and a manifest; it knows of no realm."""
    shutil.copytree(prepared, meshnet.home, dirs_exist_ok=True)
    meshnet.env["MESHNET_NODE_DIR"] = "node"
    return meshnet


@pytest.fixture
def model(node):
    return node.home / "tiny.gguf"


def findings(document):
    return {finding["name"]: finding for finding in document["findings"]}


def failures(document):
    """What failed. Every failure says what to do, and the verdict names it."""
    failed = {n: f for n, f in findings(document).items() if f["status"] == "failed"}
    assert document["passed"] is not bool(failed)
    for name, finding in failed.items():
        assert finding["fix"]
        assert name in document["verdict"]
    return failed


def test_without_a_realm_the_shard_is_proven_and_the_verdict_says_what_was_not_looked_at(
    node, model
):
    done = node("node", "doctor", model)
    assert done.out.splitlines()[-1] == "✓ passed; not checked: clock, tracker, endpoint"
    assert all(len(line) <= 80 for line in done.out.splitlines())
    for line in ("✓ files", "✓ version", "✓ layout", "✓ forward", "✓ disk", "– clock"):
        assert any(shown.startswith(line) for shown in done.out.splitlines()), line
    document = node("node", "doctor", model, "-o", "json").json
    assert failures(document) == {}
    assert document["report"]["status"] == "passed"
    rows = [
        json.loads(row) for row in node("node", "doctor", model, "-o", "ndjson").out.splitlines()
    ]
    assert [row["name"] for row in rows] == [f["name"] for f in document["findings"]]


def test_a_manifest_is_shown_written_and_not_written_over(node, model):
    meshnet = node
    (meshnet.home / "recipes.toml").unlink()
    shown = meshnet("node", "manifest", model, "--backend", "reference-numpy")
    written = meshnet(
        "node", "manifest", model, "--backend", "reference-numpy", "--recipe-id", "dense",
        "--output", "recipes.toml",
    )  # fmt: skip
    path = meshnet.home / "recipes.toml"
    assert path.read_text() == written.out == shown.out.replace('"default"', '"dense"')
    assert "written to recipes.toml" in written.err
    again = ("node", "manifest", model, "--backend", "reference-numpy", "--output", "recipes.toml")
    assert "--overwrite" in meshnet(*again, code=1).err
    meshnet(*again, "--overwrite")
    assert path.read_text() == shown.out
    missing = meshnet("node", "manifest", model, "--backend", "acme-cuda", code=1)
    assert "there is: reference-numpy" in missing.err


def test_what_the_doctor_writes_is_what_a_registration_takes(realm, require):
    require("numpy")
    model = write_model(realm.home)
    realm("node", "init", "--dir", "proven", "--label", "proven")
    realm("node", "manifest", model, "--backend", "reference-numpy", "--output", "recipes.toml")
    endpoint = f"grpc://127.0.0.1:{free_port()}"
    ask = ("node", "doctor", model, "--dir", "proven", "--layers", "0:2", "--endpoint", endpoint)

    stranger = realm(*ask, "-o", "json", code=1).json
    assert set(failures(stranger)) == {"tracker"}
    assert "meshnet admin node enrol" in failures(stranger)["tracker"]["fix"]

    realm("admin", "node", "enrol", "proven/enrol.json")
    document = realm(*ask, "-o", "json", "--identity", "first.json", "--report", "report.json").json
    assert failures(document) == {}
    found = findings(document)
    assert found["clock"]["status"] == "ok"
    assert found["tracker"]["found"] == "a tracker answers: this node is enrolled, as 'proven'"
    assert "only this machine" in found["endpoint"]["found"]
    registered = realm(
        "node", "register", "--dir", "proven", "--identity", "first.json", "--report", "report.json",
        "--endpoint", endpoint, "--new-boot", "-o", "json",
    ).json  # fmt: skip
    assert (registered["status"], registered["recipe_status"]) == ("live", "dark")

    realm("admin", "node", "suspend", "proven", "--reason", "test")
    suspended = failures(realm(*ask, "-o", "json", code=1).json)
    assert "suspended" in suspended["tracker"]["found"]


def test_an_endpoint_where_another_nodes_key_answers_is_not_ours(node, model):
    endpoint = f"127.0.0.1:{free_port()}"
    other = Node(
        realm="lab", key=OTHER, boot_id=str(uuid.uuid4()), shards={}, tracker=None, outbox=None
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve(other, endpoint)),
    ):
        ran = node(
            "node", "doctor", model, "--endpoint", f"grpc://{endpoint}", "-o", "json", code=1
        )
    assert set(failures(ran.json)) == {"endpoint"}
    assert OTHER.public in failures(ran.json)["endpoint"]["found"]
    # the port is taken, of which gRPC has words of its own
    assert ran.err == ""


def test_an_endpoint_that_leads_nowhere_is_unreachable(node, model):
    document = node(
        "node", "doctor", model, "--endpoint", f"grpc://nobody.invalid:{free_port()}",
        "-o", "json", code=1,
    ).json  # fmt: skip
    assert set(failures(document)) == {"endpoint"}
    assert "firewall" in failures(document)["endpoint"]["fix"]


def test_a_realm_that_does_not_answer_is_two_failures_and_the_shard_is_proven_all_the_same(
    node, model
):
    server = f"nats://127.0.0.1:{free_port()}"
    document = node(
        "node", "doctor", model, "--realm", "lab", "--server", server, "-o", "json", code=1
    ).json
    assert set(failures(document)) == {"clock", "tracker"}
    assert server in failures(document)["clock"]["found"]
    assert document["report"]["status"] == "passed"


@pytest.mark.parametrize(("skew_s", "failed"), [(-3_600, True), (3_600, True), (2, False)])
def test_a_skewed_clock_is_found_by_asking_the_broker(node, model, require, skew_s, failed):
    require("nats-server")

    async def answer(message):
        time_ns = time.time_ns() + skew_s * 1_000_000_000
        await message.respond(b'{"sequence":1,"answer":{"time_ns":%d}}' % time_ns)

    @asynccontextmanager
    async def broker():
        """A server where the clock is asked, and its answer is wrong."""
        async with (
            LocalServer(node.home / "nats") as server,
            closing(await connect(server.url, name="test")) as nc,
        ):
            await nc.subscribe(query("lab", "clock"), cb=answer)
            await nc.flush()
            yield server.url

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(broker()) as server,
    ):
        document = node(
            "node", "doctor", model, "--realm", "lab", "--server", server, "-o", "json", code=1
        ).json
    found = findings(document)["clock"]
    assert (found["status"] == "failed") is failed
    assert ("behind" if skew_s > 0 else "ahead of") in found["found"]
    # nothing answers about the node: that is said too
    assert findings(document)["tracker"]["status"] == "failed"


def flip_a_byte(path):
    """Corrupt a weight, and put back the time: a disk that lies changes neither size nor mtime."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_corrupted_file_is_named_once_its_bytes_are_read(node, model):
    os.utime(model, (1_700_000_000, 1_700_000_000))
    (node.home / "pin.json").write_text(node("node", "pin", model, "-o", "json").out)
    ask = ("node", "doctor", model, "--expect", "pin.json", "-o", "json")
    assert failures(node(*ask).json) == {}
    flip_a_byte(model)
    document = node(*ask, "--no-cache", "--report", "report.json", code=1).json
    assert set(failures(document)) == {"files"}
    assert "tiny.gguf: found" in failures(document)["files"]["found"]
    assert document["report"] is None
    assert not (node.home / "report.json").exists()
    # the cache does not vouch for it either: the file was changed, whatever its mtime says
    assert set(failures(node(*ask, code=1).json)) == {"files"}


def test_a_target_whose_digest_is_another_fails(node, model):
    node(
        "node",
        "pin",
        model,
        "--artifact-id",
        "acme/tiny",
        "--target",
        "tiny",
        "--revision",
        "a" * 40,
    )
    ask = ("node", "doctor", model, "--target", "tiny", "-o", "json")
    document = node(*ask).json
    assert document["identity"]["artifact"]["artifact_id"] == "acme/tiny"
    write_model(node.home, seed=7)
    assert set(failures(node(*ask, "--no-cache", code=1).json)) == {"files"}


def test_a_weight_that_is_no_number_fails_and_the_report_cannot_register(node, model):
    from gguf import GGUFReader

    (norm,) = [one for one in GGUFReader(model).tensors if one.name == "blk.1.attn_norm.weight"]
    data = bytearray(model.read_bytes())
    struct.pack_into("<f", data, norm.data_offset, math.nan)
    model.write_bytes(data)
    document = node(
        "node", "doctor", model, "--report", "report.json", "--identity", "identity.json",
        "-o", "json", code=1,
    ).json  # fmt: skip
    assert set(failures(document)) == {"load"}
    assert "'blk.1.attn_norm.weight' holds a NaN" in failures(document)["load"]["found"]
    refused = node(
        "node", "register", "--identity", "identity.json", "--report", "report.json",
        "--endpoint", "grpc://10.0.0.7:7001", "--realm", "lab", code=1,
    )  # fmt: skip
    assert "not-passed" in refused.err
    assert "'load: BackendError" in refused.err


@pytest.mark.parametrize(
    ("line", "other", "name"),
    [
        ("runtime_version", '"b9259"', "version"),
        ("kv_layout", '"paged-16/NHD"', "layout"),
        ("protocol_schema_version", "7", "layout"),
        ("tokenizer_revision", f'"{"ab" * 32}"', "recipe"),
        ("backend_id", '"acme-cuda"', "backend"),
        ("kv_dtype", "3", "recipe"),
    ],
)
def test_what_is_declared_otherwise_than_it_runs_is_found(node, model, line, other, name):
    path = node.home / "recipes.toml"
    lines = path.read_text().splitlines()
    changed = [f"{line} = {other}" if one.startswith(f"{line} =") else one for one in lines]
    path.write_text("\n".join(changed))
    document = node("node", "doctor", model, "-o", "json", code=1).json
    assert set(failures(document)) == {name}
    assert (
        line in failures(document)[name]["found"]
        or other.strip('"') in document["verdict"] + (failures(document)[name]["found"])
    )


def test_a_failure_is_shown_with_what_to_do_and_a_verdict_in_one_line(node, model):
    shown = node("node", "doctor", model, "--device", "cuda:0", code=1).out.splitlines()
    (failed,) = [line for line in shown if line.startswith("✗ backend")]
    assert "'cuda:0'" in failed
    assert any("--device" in line for line in shown)
    assert shown[-1].startswith("✗ failed: backend (1 of ")


@pytest.fixture
def site(meshnet, require, tmp_path):
    """A third party's package, installed for `meshnet`, with a model made by it."""
    require("gguf")
    folder = third_party.install(tmp_path / "site")
    meshnet.env |= {"PYTHONPATH": str(folder), "MESHNET_NODE_DIR": "node"}
    making = [sys.executable, "-m", "acme_toy.make_model", meshnet.home / "toy.gguf"]
    subprocess.run(making, env=meshnet.env, check=True)
    return folder


def test_a_third_partys_backend_is_found_and_diagnosed(meshnet, site):
    meshnet("node", "init", "--dir", "node")
    declared = ("--backend", "acme-toy", "--tokenizer-revision", "none-1.0")
    meshnet("node", "manifest", "toy.gguf", *declared, "--output", "recipes.toml")
    document = meshnet("node", "doctor", "toy.gguf", "-o", "json").json
    assert failures(document) == {}
    assert document["report"]["backend"] == {"backend_id": "acme-toy", "device": "cpu"}
    undeclared = meshnet("node", "manifest", "toy.gguf", *declared[:2], code=1)
    assert "--tokenizer-revision" in undeclared.err

    source = site / "acme_toy" / "__init__.py"
    source.write_text(
        source.read_text().replace("def encode", "def open(self): ...\n\n    def encode")
    )
    ask = [*MESHNET, "node", "doctor", "toy.gguf"]
    said = [
        subprocess.run(
            ask, cwd=meshnet.home, env=meshnet.env | debug, capture_output=True, text=True
        )
        for debug in ({}, {"MESHNET_DEBUG": "1"})
    ]
    assert [one.returncode for one in said] == [1, 1]
    assert "docs/how-to/add-a-backend.md" in " ".join(said[0].stdout.split())
    assert ["TypeError" in one.stderr for one in said] == [False, True]


@pytest.mark.parametrize("place", ["def load(self", "class ToyBackend"])
def test_a_backend_that_asks_to_leave_makes_no_success_of_a_recipe(meshnet, site, place):
    source = site / "acme_toy" / "__init__.py"
    leaving = "def load(*_, **__): raise SystemExit(0)\n\n    def old(self"
    text = leaving if place.startswith("def") else "raise SystemExit(0)\n\nclass ToyBackend"
    source.write_text(source.read_text().replace(place, text))
    ran = meshnet(
        "node", "manifest", "toy.gguf", "--backend", "acme-toy", "--output", "recipes.toml", code=1
    )
    assert "SystemExit: 0" in ran.err
    assert "acme-toy" in ran.err
    assert ran.out == ""
    assert not (meshnet.home / "recipes.toml").exists()


def test_serve_does_not_repeat_what_its_doctor_has_just_said(node, model):
    manifest = node.home / "recipes.toml"
    manifest.write_text(manifest.read_text().replace('"contiguous', '"paged'))
    serve = (
        "node", "serve", model, "--realm", "lab", "--server", "nats://127.0.0.1:1",
        "--endpoint", f"grpc://127.0.0.1:{free_port()}",
    )  # fmt: skip
    told = node(*serve, code=1)
    assert "kv_layout" in told.out
    assert told.err.splitlines()[-2:] == [
        "meshnet: the doctor did not pass this shard: layout",
        "  nothing was registered",
    ]
    scripted = node(*serve, "-o", "ndjson", code=1)
    assert scripted.out == ""
    assert "layout: kv_layout: declared" in scripted.err
    assert "`meshnet node doctor` says what to do" in scripted.err
