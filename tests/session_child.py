"""A node of the session tests in a process of its own, so that it can be killed or stopped.

    session_child.py SEED START END

says where it listens, takes the tracker's claims as a line, and then answers each `facts` with what it
attested and whether it holds anything.
"""

import json
import sys

import anyio
import msgspec

from meshnet_events.answers import ClaimAnswer, NodeAnswer
from meshnet_events.envelope import canonical
from meshnet_events.keys import EventKey
from session_kit import ATTESTED, freed, lab


async def main(seed, start, end):
    async with lab() as lab_:
        part = await lab_.start(int(start), int(end), key=EventKey.from_text(seed))
        tell({"endpoint": part.endpoint, "boot_id": part.node.boot_id})
        known = json.loads(await hear())
        for claim in msgspec.convert(known["claims"], list[ClaimAnswer]):
            lab_.tracker.claims[claim.node, claim.shard_id] = claim
        for node in msgspec.convert(known["nodes"], list[NodeAnswer]):
            lab_.tracker.nodes[node.node] = node
        print("ready", flush=True)
        while await hear():
            await freed(part)
            said = [canonical(fact.evidence).decode() for fact in part.said.of(ATTESTED)]
            tell({"attested": said, "idle": part.is_idle})


async def hear():
    return await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


def tell(what):
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
