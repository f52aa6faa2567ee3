"""Names of subjects and streams, and what may be a realm."""

import pytest

from meshnet_events import subjects


def test_every_name_is_spelled_as_specified():
    assert subjects.event("demo", "U1") == "mesh.demo.evt.U1"
    assert subjects.live("demo", "U1") == "mesh.demo.live.U1"
    assert subjects.presence("demo", "U1") == "mesh.demo.presence.U1"
    assert subjects.stream("demo") == "MESH_demo"


@pytest.mark.parametrize("text", ["a", "demo", "a-1-b", "a--", "d" * 32])
def test_a_realm_is_a_lower_case_letter_and_up_to_31_more(text):
    assert subjects.is_realm(text)
    assert subjects.check_realm(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "A", "1a", "-a", "a.b", "a*", "*", ">", "a b", "a\n", "\na", "é", "aé", "d" * 33, "a_b"],
)
def test_what_could_be_a_wildcard_or_a_token_too_many_is_no_realm(text):
    assert not subjects.is_realm(text)
    with pytest.raises(ValueError, match="not a realm name"):
        subjects.check_realm(text)


def test_the_error_about_a_realm_repeats_no_more_than_40_characters():
    with pytest.raises(ValueError, match="not a realm name") as caught:
        subjects.check_realm("X" * 10_000)
    assert len(str(caught.value)) < 200
