"""From a real stream to real SQLite views, interrupted in every way that this release handles."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import projector_kit
from meshnet_bus.history import HistoryFault
from meshnet_bus.stream import provision
from meshnet_cli.bench.mix import REALM
from meshnet_tracker.projector import Projector
from meshnet_tracker.registry.outcome import FoldFault
from meshnet_tracker.snapshot import rows_of
from meshnet_tracker.views import AnotherProjector, Views
from projector_kit import fold_from_first, history, project, store, whole_file

TESTS = Path(projector_kit.__file__).parent


@pytest.fixture
async def bench_realm(nc):
    await provision(nc, REALM)
    return REALM


async def test_views_hold_what_a_fold_from_sequence_1_gives(nc, bench_realm, tmp_path):
    last = await store(nc, history(300))
    state = await fold_from_first(nc, last)
    assert await project(nc, tmp_path / "views.db", last) == rows_of(state)
    assert sum(state.counts.values()) == last
    assert {"applied", "not-json", "replayed", "bad-signature", "wrong-subject"} <= set(
        state.counts
    )


async def test_going_on_from_any_position_gives_the_same_file(nc, bench_realm, tmp_path):
    last = await store(nc, history(240))
    await project(nc, tmp_path / "at-once.db", last)
    chance, at = random.Random(5), 0
    while at < last:
        at = min(last, at + chance.randrange(1, 60))
        await project(nc, tmp_path / "in-steps.db", at)
    at_once, in_steps = [await whole_file(tmp_path / f"{n}.db") for n in ("at-once", "in-steps")]
    assert at_once == in_steps
    assert at_once["transitions"]
    assert at_once["refusals"]


async def test_deleted_views_come_back_identical(nc, bench_realm, tmp_path):
    last = await store(nc, history(120))
    path = tmp_path / "views.db"
    await project(nc, path, last)
    before = await whole_file(path)
    for file in tmp_path.glob("views.db*"):
        file.unlink()
    await project(nc, path, last)
    assert await whole_file(path) == before


async def test_records_that_arrive_while_it_follows_become_visible(nc, bench_realm, tmp_path):
    messages = list(history(150))
    await store(nc, messages[:80])
    async with Views.open(tmp_path / "views.db", REALM) as views:
        projector = Projector(views, nc)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(projector.run)
                for number, message in enumerate(messages[80:], start=81):
                    await store(nc, [message])
                    await projector.reached(number)
                tasks.cancel_scope.cancel()
        assert rows_of((await views.load()).state) == rows_of(projector.state)


def after_a_while(commit):
    async def slowly(*stated, **named):
        await anyio.sleep(0.2)
        await commit(*stated, **named)

    return slowly


async def test_it_has_caught_up_once_all_that_the_stream_held_is_committed(
    nc, bench_realm, tmp_path
):
    messages = list(history(120))
    last = await store(nc, messages[:90])
    # behind, and then with nothing left to commit
    for _ in range(2):
        async with Views.open(tmp_path / "views.db", REALM) as views:
            views.commit = after_a_while(views.commit)
            projector = Projector(views, nc)
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(projector.run)
                    await projector.caught_up()
                    tasks.cancel_scope.cancel()
            assert projector.committed == last
            assert (await views.load()).position.sequence == last


async def test_killed_again_and_again_it_applies_every_record_once(
    server, nc, bench_realm, tmp_path
):
    path = tmp_path / "views.db"
    messages = iter(list(history(400)))
    chance, sent = random.Random(9), 0
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "projector_kit", server.url, str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        try:
            assert process.stdout.readline() == b"ready\n"
            sent += await store(nc, [m for m, _ in zip(messages, range(60), strict=False)])
            await anyio.sleep(chance.random() * 0.1)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
    sent += await store(nc, messages)
    assert await project(nc, path, sent) == rows_of(await fold_from_first(nc, sent))
    await project(nc, tmp_path / "fresh.db", sent)
    assert await whole_file(path) == await whole_file(tmp_path / "fresh.db")


async def test_the_second_projector_on_one_file_stops(nc, bench_realm, tmp_path):
    messages = list(history(100))
    await store(nc, messages[:60])
    path = tmp_path / "views.db"
    async with Views.open(path, REALM) as views, Views.open(path, REALM) as others:
        late = Projector(others, nc, until=100)
        loaded = await others.load()
        await Projector(views, nc, until=60).run()
        await store(nc, messages[60:])
        # it read the position before the first one moved it
        others.load = lambda: _given(loaded)
        with anyio.fail_after(20), pytest.raises(AnotherProjector, match="another process"):
            await late.run()
        assert (await views.load()).position.sequence == 60


async def _given(value):
    return value


async def test_signatures_are_checked_unless_told_otherwise(nc, bench_realm, tmp_path):
    first, second, *_ = history(40)
    subject, body = second
    forged = body[:-20] + b"A" * 18 + b'"}'
    await store(nc, [first, (subject, forged)])
    async with Views.open(tmp_path / "views.db", REALM) as views:
        await Projector(views, nc, until=2).run()
        assert (await views.refusal(2)).code == "bad-signature"


async def test_many_signatures_are_checked_in_threads_with_the_same_result(
    nc, bench_realm, tmp_path
):
    last = await store(nc, history(700))
    rows = await project(nc, tmp_path / "views.db", last)
    assert rows == rows_of(await fold_from_first(nc, last))


async def test_a_stream_made_anew_faults_and_commits_nothing_more(nc, bench_realm, tmp_path):
    messages = list(history(80))
    await store(nc, messages[:40])
    path = tmp_path / "views.db"
    await project(nc, path, 40)
    before = await whole_file(path)
    await nc.jetstream().delete_stream(f"MESH_{REALM}")
    await provision(nc, REALM)
    await store(nc, messages[:60])
    async with Views.open(path, REALM) as views:
        with anyio.fail_after(20), pytest.raises(HistoryFault, match="was created"):
            await Projector(views, nc, until=60).run()
    assert await whole_file(path) == before


async def test_a_realm_of_another_operator_is_refused(nc, bench_realm, tmp_path):
    await store(nc, history(10))
    async with Views.open(tmp_path / "views.db", REALM) as views:
        with pytest.raises(FoldFault, match="expected U"):
            await Projector(views, nc, operator="U" + "A" * 55, until=10).run()
        assert (await views.load()).position is None
