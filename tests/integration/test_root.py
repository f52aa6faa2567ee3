"""Who created the realm is asked of the stream itself, before anything else is."""

import os

import pytest

from bus_kit import REALM, fill
from meshnet_bus.api import ApiError
from meshnet_bus.root import WrongRoot, check_root
from meshnet_bus.stream import create_realm
from meshnet_events.envelope import ChainHead, sign_event
from meshnet_events.facts import DEFAULT_POLICY, RealmCreated
from meshnet_events.keys import EventKey

OPERATOR, OTHER = EventKey(bytes(range(32))), EventKey(os.urandom(32))


async def test_the_creator_is_known_by_the_first_record(nc):
    first = sign_event(
        RealmCreated(operators=(OPERATOR.public,), policy=DEFAULT_POLICY, realm=REALM),
        key=OPERATOR,
        realm=REALM,
        after=ChainHead(),
        time_ms=1_790_000_000_000,
        chance=bytes(10),
    )
    await create_realm(nc, REALM, first, issuer=OPERATOR.public)
    await check_root(nc, REALM, OPERATOR.public)
    with pytest.raises(WrongRoot, match=f"created by {OPERATOR.public}; expected {OTHER.public}"):
        await check_root(nc, REALM, OTHER.public)


async def test_a_stream_that_does_not_begin_with_its_creation_is_nobodys(nc, realm):
    await fill(nc, 1)
    with pytest.raises(WrongRoot, match="nobody knows whose it is"):
        await check_root(nc, realm, OPERATOR.public)


async def test_a_realm_that_is_not_there_is_told(nc):
    with pytest.raises(ApiError):
        await check_root(nc, "elsewhere", OPERATOR.public)
