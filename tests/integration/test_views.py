"""The SQLite file: what it refuses, what it says, and that a commit is all or nothing."""

import sqlite3

import pytest

from kit import Scenario
from meshnet_bus.history import FoldedPosition
from meshnet_tracker.registry.rows import Transition
from meshnet_tracker.snapshot import rows_of, take_batch
from meshnet_tracker.views import AnotherProjector, Views, ViewsError


@pytest.fixture
def lab():
    lab = Scenario()
    lab.certify("n1@h1[0,14)", "n2@h2[14,28)")
    return lab


def position(sequence):
    return FoldedPosition("2026-11-30T13:30:00Z", sequence, "0" * 64)


async def written(path, lab):
    async with Views.open(path, lab.state.name) as views:
        batch = take_batch(lab.state)
        await views.commit(batch, before=0, position=position(lab.state.sequence))


async def test_a_new_file_holds_the_state_before_sequence_1(tmp_path):
    async with Views.open(tmp_path / "views.db", "lab") as views:
        loaded = await views.load()
    assert loaded.position is None
    assert loaded.state.sequence == 0
    assert loaded.state.realm is None


async def test_what_was_committed_is_read_back(tmp_path, lab):
    await written(tmp_path / "views.db", lab)
    async with Views.open(tmp_path / "views.db", lab.state.name) as views:
        loaded = await views.load()
        transitions = await views.transitions()
    assert rows_of(loaded.state) == rows_of(lab.state)
    assert loaded.state.live_claims.keys() == lab.state.live_claims.keys()
    assert loaded.position == position(lab.state.sequence)
    assert any(t.kind == "recipe" and t.new == "certified" for t in transitions)
    assert all(isinstance(t, Transition) for t in transitions)


async def test_a_commit_from_another_position_writes_nothing(tmp_path, lab):
    path = tmp_path / "views.db"
    async with Views.open(path, lab.state.name) as views:
        batch = take_batch(lab.state)
        with pytest.raises(AnotherProjector, match="another process writes"):
            await views.commit(batch, before=7, position=position(lab.state.sequence))
        assert (await views.load()).position is None
        assert await views.transitions() == []


async def test_a_commit_of_another_stream_writes_nothing(tmp_path, lab):
    path = tmp_path / "views.db"
    await written(path, lab)
    last = lab.state.sequence
    lab.withdraw("n1")
    async with Views.open(path, lab.state.name) as views:
        other = FoldedPosition("2026-12-01T00:00:00Z", last + 1, "1" * 64)
        with pytest.raises(AnotherProjector):
            await views.commit(take_batch(lab.state), before=last, position=other)
        assert (await views.load()).position == position(last)


async def test_a_commit_that_fails_half_way_leaves_the_last_one(tmp_path, lab):
    path = tmp_path / "views.db"
    await written(path, lab)
    before = lab.state.sequence
    lab.withdraw("n1")
    lab.publish("n1", lab.registration("n1@h1[0,14)"))
    with sqlite3.connect(path) as other:
        other.execute(
            "create trigger full before insert on claims begin select raise(abort, 'disk full'); end"
        )
    other.close()
    async with Views.open(path, lab.state.name) as views:
        with pytest.raises(ViewsError, match=r"cannot write .*disk full"):
            await views.commit(
                take_batch(lab.state), before=before, position=position(lab.state.sequence)
            )
        assert (await views.load()).position == position(before)


@pytest.mark.parametrize("content", [b"not a database at all, but long enough" * 30, b"{}"])
async def test_a_file_that_holds_no_views_says_what_to_do(tmp_path, content):
    path = tmp_path / "views.db"
    path.write_bytes(content)
    with pytest.raises(ViewsError, match="Delete it"):
        async with Views.open(path, "lab"):
            pass
    assert path.read_bytes() == content


async def test_another_realms_file_is_refused(tmp_path, lab):
    await written(tmp_path / "views.db", lab)
    with pytest.raises(ViewsError, match="Name another file"):
        async with Views.open(tmp_path / "views.db", "elsewhere"):
            pass


async def test_a_file_of_another_fold_version_is_refused(tmp_path, lab):
    path = tmp_path / "views.db"
    await written(path, lab)
    with sqlite3.connect(path) as other:
        other.execute("update position set fold_version = 99")
    other.close()
    with pytest.raises(ViewsError, match="version 99"):
        async with Views.open(path, lab.state.name):
            pass


async def test_a_directory_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ViewsError, match="nowhere"):
        async with Views.open(tmp_path / "nowhere" / "views.db", "lab"):
            pass


async def test_people_can_ask_the_tables_with_sql(tmp_path, lab):
    path = tmp_path / "views.db"
    await written(path, lab)
    with sqlite3.connect(path) as plain:
        claims = plain.execute("select status, count(*) from claims group by status").fetchall()
        recipes = plain.execute("select status, layer_count from recipes").fetchall()
    plain.close()
    assert claims == [("live", 2)]
    assert recipes == [("certified", 28)]
