"""Hosts: one machine is one digest in a realm, another in the next, and never its own id."""

import re

import pytest

from meshnet_events import host
from meshnet_events.host import declared_host, machine_host
from meshnet_node.host import host_of

MACHINE = "0123456789abcdef" * 2


def test_the_examples_of_the_module_are_right():
    shown = re.findall(r"^ {8}([0-9a-f]{64})$", host.__doc__, re.MULTILINE)
    assert shown == [machine_host("lab", MACHINE).id, declared_host("lab", "rack-2").id]


def test_where_a_host_comes_from_is_said():
    assert machine_host("lab", MACHINE).source == "machine-id"
    assert declared_host("lab", "rack-2").source == "declared"


def test_realms_cannot_compare_what_they_see_and_no_two_hosts_are_one():
    seen = [
        make(realm, name).id
        for realm in ("lab", "demo")
        for make, name in (
            (machine_host, MACHINE),
            (machine_host, MACHINE[::-1]),
            (declared_host, MACHINE),
            (declared_host, "rack-2"),
        )
    ]
    assert len(set(seen)) == len(seen)
    assert not any(MACHINE in digest for digest in seen)


def test_a_node_s_host_is_another_in_another_realm(tmp_path):
    machine_id = tmp_path / "machine-id"
    machine_id.write_text(f"{MACHINE}\n")
    for declared in (None, "rack-2"):
        lab, demo = (host_of(realm, declared, machine_id=machine_id) for realm in ("lab", "demo"))
        assert lab.id != demo.id
        assert lab == (declared_host("lab", declared) if declared else machine_host("lab", MACHINE))


@pytest.mark.parametrize(
    "text", ["", "uninitialized", MACHINE.upper(), MACHINE + "\n", MACHINE[1:]]
)
def test_what_is_no_machine_id_names_no_host(text):
    with pytest.raises(ValueError, match="machine_id"):
        machine_host("lab", text)
