"""Failures that users of comparable systems reported, where a session is what judges them.

The scenarios are those of `incidents.json`, played by nodes that talk over real gRPC.
"""

import json
from pathlib import Path

import msgspec
import pytest

from meshnet_node.session.failure import SessionFailed
from session_kit import LAYERS, RECIPE, SHOOK_HANDS, lab, tokens_of

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "data" / "incidents.json").read_text())[
        "cases"
    ]
}


async def test_a_peer_that_restarted_at_the_same_address_refuses_sessions_of_its_older_boot():
    case = CASES["peer-restarted-same-address"]
    first, restart, frame = case["given_when"]
    (verdict,) = case["then"]
    async with lab() as lab_:
        left = await lab_.start(0, 3)
        right = await lab_.start(3, LAYERS)
        boots = {first["session"]["boot"]: right.node.boot_id}
        async with lab_.open(left.hop(), right.hop()) as route:
            assert await tokens_of(route, (1, 2), 1)
        again = await lab_.start(3, LAYERS, key=right.key)
        boots[restart["restart"]["boot"]] = again.node.boot_id
        assert len(set(boots.values())) == 2
        # the route still names the older boot, and whoever answers there now is the newer one
        stale = msgspec.structs.replace(again.hop(), boot_id=boots[frame["frame"]["session_boot"]])
        with pytest.raises(SessionFailed) as refused:
            async with lab_.open(left.hop(), stale):
                pass
        assert verdict == {"handshake": "refused", "because": "older boot"}
        assert "boot" in refused.value.detail
        assert refused.value.hop == 1
        # a driver that asks that very process is refused by the process itself
        with pytest.raises(SessionFailed) as refused:
            async with lab_.open(
                msgspec.structs.replace(left.hop(), boot_id=boots["b1"]), again.hop()
            ):
                pass
        assert refused.value.reason == "stale-boot"
        # and the current boot is served
        async with lab_.open(left.hop(), again.hop()) as route:
            assert await tokens_of(route, (1, 2), 1)


async def test_a_protocol_that_differs_by_a_patch_is_refused_before_a_session():
    case = CASES["protocol-patch-differs"]
    versions = [
        step["register"]["axes"]["protocol_schema_version"] for step in case["given_when"][:2]
    ]
    verdict = case["then"][0]
    recipes = [
        msgspec.structs.replace(RECIPE, protocol_schema_version=version) for version in versions
    ]
    async with lab() as lab_:
        n1 = await lab_.start(0, 3, recipe=recipes[0])
        n2 = await lab_.start(3, LAYERS, recipe=recipes[1], listed=False)
        # a tracker that lags lists it under the recipe of before: so the two do meet
        believed = lab_.tracker.claims[n1.key.public, "main"].fingerprint
        lab_.tracker.lists(n2, recipe_digest=believed.runtime_recipe_digest)
        with pytest.raises(SessionFailed):
            async with lab_.open(n1.hop(), n2.hop(), caller=lab_.caller(recipe=recipes[0])):
                pass
    (by_n1,), (by_n2,) = n1.said.of(SHOOK_HANDS), n2.said.of(SHOOK_HANDS)
    assert [by_n1.accepted, by_n2.accepted] == [False, False]
    assert verdict["handshake"] == "refused"
    for result in (by_n1, by_n2):
        assert [mismatch.reason for mismatch in result.mismatches] == [verdict["reason"]]
