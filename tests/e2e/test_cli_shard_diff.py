"""`meshnet shard diff`: what two shards differ in, and whether they hold the same bytes."""

import msgspec
import pytest

from kit import Scenario, digest
from meshnet_auditor.source import write_records
from meshnet_cli.registered import held_file

WHOLE = digest("weights")


def cut_of(start, end, *, content="sound"):
    """What a block says of a file that was cut from the whole artifact."""
    return {
        "content_digest": digest(f"{content} cut of [{start}, {end})"),
        "derived_from": {
            "source_artifact_digest": WHOLE,
            "shard_start": start,
            "shard_end": end,
        },
    }


@pytest.fixture
def history(meshnet):
    """A realm of nodes that hold files, written to a file."""
    lab = Scenario()
    for name in ("ada", "bob", "cyd", "dan", "eve", "fay"):
        lab.enrol(name, label=name)
    lab.register("ada@h1[0,3)", artifact=cut_of(0, 3))
    lab.register("bob@h2[3,28)", artifact=cut_of(3, 28))
    lab.register("cyd@h3[0,3)", artifact=cut_of(0, 3, content="damaged"))
    lab.register("dan@h4[0,2)", artifact=cut_of(0, 3))
    lab.register("eve@h5[0,3)")
    lab.register("fay@h6[0,3)", axes={"kv_dtype": "f16"})
    path = meshnet.home / "history.ndjson"

    def write():
        path.write_bytes(b"".join(write_records(lab.records)))
        return path

    write()
    return lab, write


@pytest.mark.parametrize(
    ("left", "right", "said", "code"),
    [
        ("ada", "bob", "their files differ, as those of different layers do", 0),
        ("ada", "dan", "they hold the same file", 0),
        ("ada", "eve", "their files differ, as a model and a cut of it do", 0),
        ("eve", "ada", "their files differ, as a model and a cut of it do", 0),
        ("ada", "cyd", "they hold the same layers in files that differ: hold both against", 1),
    ],
)
def test_of_two_shards_of_one_recipe_the_files_are_compared(
    meshnet, history, left, right, said, code
):
    ask = ("shard", "diff", left, right, "--from", "history.ndjson")
    shown = " ".join(meshnet(*ask, code=code).out.split())
    assert shown.startswith(f"{left} and {right} are of one recipe: nothing that it names differs ")
    assert said in shown
    document = meshnet(*ask, "-o", "json", code=code).json
    assert document["differences"] == []
    cut = {"content_digest": digest("sound cut of [0, 3)"), "cut": [0, 3]}
    whole = {"content_digest": WHOLE, "cut": None}
    assert document["files"][0] == (whole if left == "eve" else cut)


def test_of_two_recipes_it_is_said_whose_values_are_the_expected_ones(meshnet, history):
    ask = ("shard", "diff", "ada", "fay", "--from", "history.ndjson")
    first, second, *_ = meshnet(*ask, code=1).out.splitlines()
    assert first == "fay is not of ada's recipe; ada's values are the expected ones"
    assert second.split()[:4] == ["cache-layout", "kv_dtype", "is", "'f16',"]
    assert meshnet(*ask, "-o", "json", code=1).json["files"] is None


def test_a_record_that_is_not_the_one_that_was_folded_says_nothing(history):
    lab, _ = history
    ada, cyd = (lab.state.claims[lab.public(name)]["main"] for name in ("ada", "cyd"))
    record, other = (lab.records[claim.sequence - 1] for claim in (ada, cyd))
    assert held_file("lab", ada, record).content_digest == digest("sound cut of [0, 3)")
    assert held_file("lab", ada, None) is None
    assert held_file("lab", ada, other) is None
    assert held_file("lab", ada, lab.records[0]) is None
    forged = record.body.replace(digest("sound cut of [0, 3)").encode(), digest("x").encode())
    assert forged != record.body
    assert held_file("lab", ada, msgspec.structs.replace(record, body=forged)) is None
    other_layers = msgspec.structs.replace(ada.identity, shard_end=2)
    assert held_file("lab", msgspec.structs.replace(ada, identity=other_layers), record) is None


def test_the_newest_registration_is_the_one_that_is_read(meshnet, history):
    lab, write = history
    lab.register("cyd@h3[0,3)", artifact=cut_of(0, 3), boot="b2")
    write()
    assert "the same file" in meshnet("shard", "diff", "ada", "cyd", "--from", "history.ndjson").out
