"""What a session leaves behind without the collector's help, and what a backend cannot do to a node."""

import gc
import threading
from pathlib import Path

import pytest

from bus_kit import until
from meshnet_node.backends import BackendError, LoadedShard, Slot
from meshnet_node.session.failure import SessionFailed
from session_kit import LAYERS, ToyShard, freed, lab, tokens_of, whole_model

LEAVING = [SystemExit, KeyboardInterrupt, GeneratorExit]


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


@pytest.mark.parametrize("kind", LEAVING)
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


@pytest.mark.parametrize("kind", LEAVING)
@pytest.mark.parametrize("call", ["open", "encode", "decode", "close"])
async def test_no_call_of_a_backend_takes_the_process_along(call, kind):
    loaded = ToyShard(0, LAYERS)

    def leave(*_, **__):
        raise kind("the driver library called exit()")

    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, loaded=loaded)
        honest = loaded.open

        def opened(*given, **how):
            slot = honest(*given, **how)
            slot.close = leave
            return slot

        loaded.__dict__.update({"open": opened} if call == "close" else {call: leave})

        async def forward():
            async with lab_.open(part.hop()) as route:
                await tokens_of(route, await route.encode("a"), 1)
                await route.certify(completed_at_ms=part.node.clock_ms())

        if call == "close":  # when all is said
            await forward()
        else:
            with pytest.raises(SessionFailed, match=f"internal: .*{kind.__name__}"):
                await forward()
        await until(lambda: not part.responder.sessions)
        for name in loaded.__dict__.keys() & {"open", "encode", "decode"}:
            del loaded.__dict__[name]
        async with lab_.open(part.hop()) as route:
            assert await tokens_of(route, (1, 2), 3) == whole_model((1, 2), 3)


async def test_an_error_that_ends_the_process_when_asked_what_it_says_ends_one_session():
    class Leaving(BackendError):
        def __str__(self):
            raise SystemExit

    def twist(_slot, _rows):
        raise Leaving

    async with lab() as lab_:
        part = await lab_.start(0, LAYERS, loaded=ToyShard(0, LAYERS, twist=twist))
        with pytest.raises(SessionFailed, match="cannot say what it is"):
            async with lab_.open(part.hop()) as route:
                await tokens_of(route, (1, 2), 1)
        await freed(part)


def kept_off_the_loop(kind, protocol, touched):
    """`kind`, writing down whatever of its protocol is looked at where the event loop runs."""
    names = {name for name in vars(protocol) if not name.startswith("_")}

    class Kept(kind):
        def __getattribute__(self, name):
            if name in names and threading.current_thread() is threading.main_thread():
                touched.append(f"{protocol.__name__}.{name}")
            return super().__getattribute__(name)

    return Kept


async def test_nothing_of_a_backend_is_looked_at_on_the_event_loop():
    touched = []
    shard = kept_off_the_loop(ToyShard, LoadedShard, touched)

    def opened(*given, **how):
        slot = shard.open(*given, **how)
        slot.__class__ = kept_off_the_loop(type(slot), Slot, touched)
        return slot

    async with lab() as lab_:
        parts = [
            await lab_.start(*layers, loaded=shard(*layers)) for layers in ((0, 3), (3, LAYERS))
        ]
        for part in parts:
            part.shard.loaded.__dict__["open"] = opened.__get__(part.shard.loaded)
        assert "LoadedShard.vocabulary" in touched, "what it says of itself is asked for once"
        touched.clear()
        async with lab_.open(*(part.hop() for part in parts)) as route:
            tokens = await tokens_of(route, await route.encode("abc"), 3)
            done = await route.certify(completed_at_ms=parts[0].node.clock_ms())
        assert (len(tokens), done.is_complete) == (3, True)
        await freed(*parts)
    assert touched == []
