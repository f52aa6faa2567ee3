"""`meshnet node serve` before it serves, and other commands that speak as the same node."""

import signal
import socket

import pytest
import trustme

from cli_kit import free_port
from meshnet_node.directory import NodeDirectory


@pytest.fixture
def told(meshnet):
    """What `serve` says to its options; there is no model to load, and nobody to register with."""
    meshnet("node", "init", "--dir", "node")

    def ask(*options, code, endpoint=None):
        endpoint = endpoint or f"grpc://127.0.0.1:{free_port()}"
        ran = meshnet(
            "node", "serve", "absent.gguf", "--dir", "node", "--realm", "lab",
            "--server", "nats://127.0.0.1:1", "--endpoint", endpoint, *options, code=code,
        )  # fmt: skip
        assert ran.out == "", "the doctor had begun"
        assert "of meshnet's own" not in ran.err
        assert all(len(line) < 300 for line in ran.err.splitlines()), ran.err
        return ran.err

    return ask


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("foo", "not an endpoint: 'foo'"),
        ("grpc://127.0.0.1:99999", "port 99999"),
        ("grpc://[::]:7001", "none that peers could reach"),
        ("grpcs://127.0.0.1:7001", "--tls-certificate"),
    ],
)
def test_an_endpoint_that_peers_cannot_use_is_a_usage_error(told, endpoint, said):
    err = told(endpoint=endpoint, code=2)
    assert "--endpoint" in err
    assert said in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shard-id", "Main"), "[a-z0-9-]{1,32}"),
        (("--declared-host", ""), "--declared-host"),
        (("--ask-every", "1e-9"), "Must be >= 1"),
        (("--ask-every", "nan"), "Must be"),
        (("--ask-every", "inf"), "Must be <= 86400"),
        (("--max-sessions", "0"), "Must be >= 1"),
        (("--listen", "7001"), "expected host:port"),
        (("--listen", "127.0.0.1:0"), "expected host:port"),
        (("--listen", "127.0.0.1:70000"), "expected host:port"),
    ],
)
def test_an_option_that_cannot_be_meant_is_a_usage_error(told, options, said):
    err = told(*options, code=2)
    assert options[0] in err
    assert said in err


@pytest.mark.parametrize("address", ["203.0.113.9:7001", "nobody.invalid:7001"])
def test_an_address_that_is_not_of_this_machine_is_told_before_anything_is_loaded(told, address):
    assert f"--listen: {address} cannot be listened at" in told("--listen", address, code=1)


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(told):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"--listen: {where} cannot" in told("--listen", where, code=1)
        assert f"--endpoint: {where} cannot" in told(endpoint=f"grpc://{where}", code=1)


@pytest.fixture
def files(tmp_path):
    """A certificate of an authority, its key, and what is neither."""
    authority = trustme.CA()
    made, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1")
    contents = {
        "authority": authority.cert_pem.bytes(),
        "certificate": made.cert_chain_pems[0].bytes(),
        "key": made.private_key_pem.bytes(),
        "other-key": other.private_key_pem.bytes(),
        "words": b"# no PEM\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("authority", "certificate", "key", "code", "said"),
    [
        ("words", "certificate", "key", 1, "--tls-authority"),
        ("authority", "words", "key", 1, "--tls-certificate"),
        ("authority", "certificate", "words", 1, "--tls-key"),
        ("authority", "certificate", "other-key", 1, "key values mismatch"),
        ("authority", "absent", "key", 5, "absent"),
        (".", "certificate", "key", 1, "Is a directory"),
    ],
)
def test_files_that_are_no_certificates_are_named(
    told, files, authority, certificate, key, code, said
):
    options = (
        "--tls-authority", files / authority, "--tls-certificate", files / certificate,
        "--tls-key", files / key,
    )  # fmt: skip
    assert said in told(*options, code=code)


# -- one directory, one chain ---------------------------------------------------------------------


def test_beside_a_process_that_serves_no_other_speaks_as_its_node(nodes):
    nodes.enrol("ada")
    served = nodes.serve("ada", "0:3", host="h1")
    cli, node = nodes.cli, NodeDirectory(nodes.home / "ada")
    boot, before = node.last_boot(), nodes.log()

    refused = cli("node", "withdraw", "--dir", node.path, code=1)
    assert "in use by another process; nothing was published" in refused.err
    assert "stop `meshnet node serve` first" in refused.err
    proof = ("--identity", nodes.home / "identity.json", "--report", nodes.home / "report.json")
    cli(
        "node", "doctor", nodes.model, "--manifest", nodes.manifest, "--dir", node.path, *proof
    )  # fmt: skip
    refused = cli(
        "node", "register", *proof, "--endpoint", "grpc://127.0.0.1:7001", "--declared-host", "h1",
        "--new-boot", "--dir", node.path, code=1,
    )  # fmt: skip
    assert "nothing was published" in refused.err
    refused = cli(
        "node", "serve", nodes.model, "--manifest", nodes.manifest, "--layers", "0:3",
        "--dir", node.path, "--endpoint", f"grpc://127.0.0.1:{free_port()}", code=1,
    )  # fmt: skip
    assert "another process has the outbox" in refused.err
    assert refused.out == "", "the doctor had begun"
    assert (node.last_boot(), nodes.log()) == (boot, before)
    assert cli("node", "status", "--dir", node.path, "-o", "json").json["unsent"] is None

    assert served.kill(signal.SIGTERM) == 0
    assert nodes.shard("ada")["status"] == "withdrawn"
