"""Presence bodies: exactly three members, or nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import golden
from meshnet_events.envelope import canonical
from meshnet_events.presence import MAX_PRESENCE, Presence, decode_presence
from strategies import json_objects, json_values

TOLD = {"boot_id": golden.BOOT, "load": 120, "shards": ["main", "tail"]}
PRESENCE = Presence(boot_id=golden.BOOT, load=120, shards=("main", "tail"))


def test_a_presence_comes_back_from_its_bytes_in_any_order_and_spacing():
    assert decode_presence(canonical(PRESENCE)) == PRESENCE
    assert decode_presence(json.dumps(dict(reversed(TOLD.items())), indent=2).encode()) == PRESENCE


@pytest.mark.parametrize(
    "change",
    [
        {"load": 0},
        {"load": 1000},
        {"shards": []},
        {"shards": ["x" * 32]},
    ],
)
def test_the_bounds_themselves_are_fine(change):
    assert decode_presence(canonical({**TOLD, **change})) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"load": -1},
        {"load": 1001},
        {"load": 1.5},
        {"load": True},
        {"load": "1"},
        {"load": None},
        {"load": 10**400},
        {"boot_id": golden.BOOT.upper()},
        {"boot_id": golden.BOOT + "\n"},
        {"boot_id": None},
        {"shards": "main"},
        {"shards": None},
        {"shards": ["Main"]},
        {"shards": [""]},
        {"shards": ["main\n"]},
        {"shards": ["x" * 33]},
        {"shards": [["main"]]},
        {"more": 1},
    ],
)
def test_a_member_of_another_form_makes_it_nothing(change):
    assert decode_presence(json.dumps({**TOLD, **change}).encode()) is None


@pytest.mark.parametrize("name", TOLD)
def test_a_missing_member_makes_it_nothing(name):
    kept = {key: value for key, value in TOLD.items() if key != name}
    assert decode_presence(canonical(kept)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"\xef\xbb\xbf" + canonical(TOLD),
        canonical(TOLD)[:-1],
        canonical(TOLD) + b"x",
        canonical(TOLD).replace(b"120", b"1e2"),
        canonical(TOLD).replace(b"main", b"\xed\xa0\x80"),
        canonical(TOLD).replace(b"main", rb"\ud800"),
        b"[" * MAX_PRESENCE,
        b'{"boot_id":' * (MAX_PRESENCE // 11),
        canonical(TOLD) + b" " * MAX_PRESENCE,
    ],
)
def test_other_bytes_are_nothing(body):
    assert decode_presence(body) is None


def test_the_largest_body_is_read_and_one_byte_more_is_not():
    body = canonical(TOLD)
    assert decode_presence(body + b" " * (MAX_PRESENCE - len(body))) == PRESENCE
    assert decode_presence(body + b" " * (MAX_PRESENCE + 1 - len(body))) is None


@given(st.binary(max_size=200) | (json_values | json_objects).map(canonical))
def test_nothing_arbitrary_is_presence_or_raises(body):
    assert decode_presence(body) is None


@given(json_values, st.sampled_from(sorted(TOLD)))
def test_a_member_of_any_value_is_read_as_it_is_or_not_at_all(value, name):
    told = {**TOLD, name: value}
    read = decode_presence(canonical(told))
    assert read is None or json.loads(canonical(read)) == told
