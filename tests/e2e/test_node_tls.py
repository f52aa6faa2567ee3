"""Nodes and users that reach each other by mutual TLS, told so on the command line."""

import pytest
import trustme

from cli_kit import free_port


def certificates(authority, folder, name):
    """A certificate for loopback and the files that name it, as options."""
    made = authority.issue_cert("127.0.0.1")
    files = {
        "authority": authority.cert_pem,
        "certificate": made.cert_chain_pems[0],
        "key": made.private_key_pem,
    }
    options = []
    for kind, content in files.items():
        path = folder / f"{name}.{kind}.pem"
        content.write_to_path(path)
        options += [f"--tls-{kind}", path]
    return options


@pytest.mark.slow
def test_nodes_certify_and_serve_over_mutual_tls_and_a_stranger_gets_nowhere(nodes, tmp_path):
    ours, theirs = trustme.CA(), trustme.CA()
    for name, layers in (("ada", "0:3"), ("bob", "3:6")):
        nodes.enrol(name)
        port = free_port()
        nodes.serve(
            name, layers, "--endpoint", f"grpcs://127.0.0.1:{port}",
            *certificates(ours, tmp_path, name), host=f"host of {name}", port=port,
        )  # fmt: skip
    assert nodes.shard("ada")["endpoint"].startswith("grpcs://")
    key = nodes.recipe["recipe_key"]
    driver = certificates(ours, tmp_path, "driver")
    ask = ("node", "certify", "--recipe", key, "--tokens", "2", "--dir", nodes.home / "ada")

    without = nodes.cli(*ask, code=1)
    assert "asks for a certificate" in without.err
    foreign = nodes.cli(*ask, *certificates(theirs, tmp_path, "stranger"), code=1)
    assert f"hop 0 ({nodes.label('ada')})" in foreign.err
    some = nodes.cli(*ask, *driver[:2], code=2)
    assert "--tls-certificate" in some.err
    assert nodes.recipe["status"] == "dark"

    said = nodes.cli(*ask, *driver, "-o", "json").json
    assert said["recipe_status"] == "certified"
    text = nodes.cli("generate", "--recipe", key, "--tokens", "3", "a mesh", *driver, "-o", "json")
    assert len(text.json["token_ids"]) == 3
