"""A user's route that fails is planned anew without what failed, and not for ever."""

import contextlib
import sys

import anyio
import pytest

from bus_kit import REALM, alongside
from cli_kit import FINGERPRINT, KEY, MESHNET, free_port
from meshnet_bus.service import QueryService
from meshnet_cli.errors import FAILED, UNREACHABLE
from meshnet_events.answers import PlanAnswer, PlannedHop
from meshnet_events.keys import EventKey
from meshnet_events.queries import Reply


class Stubborn:
    """A tracker that plans over nodes nobody can reach; `keys` are those of one plan after another."""

    def __init__(self, keys):
        self.keys, self.asked = keys, []

    async def answer(self, query):
        key = self.keys[min(len(self.asked), len(self.keys) - 1)]
        self.asked.append(query)
        hop = PlannedHop(
            boot_id="3769e4f9-5b0f-4b7e-9a57-2e0c2f6a1d11",
            end=4,
            endpoint=f"grpc://127.0.0.1:{free_port()}",
            label="",
            node=key,
            shard_id="main",
            start=0,
        )
        answer = PlanAnswer(
            fingerprint=FINGERPRINT,
            hops=(hop,),
            layer_count=4,
            obstacles=(),
            purpose="serve",
            recipe_key=KEY,
        )
        return Reply(sequence=1, answer=answer)


@contextlib.asynccontextmanager
async def tracker(nc, keys):
    stubborn = Stubborn(keys)
    async with alongside() as tasks:
        await tasks.start(QueryService(nc, REALM, stubborn.answer).run)
        yield stubborn


async def generate(server):
    with anyio.fail_after(60):
        return await anyio.run_process(
            [
                *(*MESHNET, "generate", "--recipe", KEY[:8], "hello"),
                *("--realm", REALM, "--server", server.url),
            ],
            check=False,
        )


@pytest.mark.parametrize(
    ("different", "plans", "code", "said"),
    [(1, 2, UNREACHABLE, "it answers another question"), (9, 3, FAILED, "hop-lost")],
)
async def test_it_gives_up_when_a_tracker_names_the_same_node_again_or_too_many(
    server, nc, realm, different, plans, code, said
):
    keys = [EventKey(bytes([number] * 32)).public for number in range(different)]
    async with tracker(nc, keys) as stubborn:
        done = await generate(server)
    assert done.returncode == code, sys.stderr.write(done.stderr.decode())
    assert len(stubborn.asked) == plans
    assert [len(query.exclude) for query in stubborn.asked] == list(range(plans))
    assert said in done.stderr.decode()
