"""What a session leaves behind without the collector's help, and what a backend cannot do to a node."""

import gc
from pathlib import Path

import pytest

from bus_kit import until
from meshnet_node.session.failure import SessionFailed
from session_kit import LAYERS, ToyShard, freed, lab, tokens_of, whole_model


def sockets():
    """How many sockets this process has open."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


async def test_no_connection_outlives_its_session_though_nothing_is_collected():
    async with lab() as lab_:
        parts = [await lab_.start(0, 2), await lab_.start(2, 4), await lab_.start(4, LAYERS)]
        hops = [part.hop() for part in parts]

        async def one_session():
            async with lab_.open(*hops) as route:
                await tokens_of(route, (1, 2, 3), 1)
            await freed(*parts)

        await one_session()
        gc.collect()
        gc.disable()
        try:
            before = sockets()
            for _ in range(6):
                await one_session()
            await until(lambda: sockets() <= before)
        finally:
            gc.enable()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_a_backend_that_asks_the_process_to_end_ends_one_session(kind):
    asked = []

    def twist(_slot, _rows):
        if not asked:
            asked.append(kind)
            raise kind("the driver library called exit()")

    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, loaded=ToyShard(0, LAYERS, twist=twist))
        with pytest.raises(SessionFailed, match=kind.__name__) as failed:
            async with lab_.open(part.hop()) as route:
                await tokens_of(route, (1, 2), 1)
        assert failed.value.reason == "internal"
        await freed(part)
        async with lab_.open(part.hop()) as route:
            assert await tokens_of(route, (1, 2), 3) == whole_model((1, 2), 3)
