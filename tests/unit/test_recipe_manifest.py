"""Recipe manifests: what is declared is read whole or not at all, and one recipe is chosen."""

import contextlib
import os
import re
import textwrap

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node import recipe_manifest
from meshnet_node.recipe_identity import RECIPE_AXES, RecipeIdentityError, RuntimeRecipe
from meshnet_node.recipe_manifest import (
    MAX_MANIFEST,
    NoSuchRecipe,
    RecipeManifest,
    RecipeManifestError,
    load_manifest,
    parse_manifest,
    render,
    write_manifest,
)

EXAMPLE = textwrap.dedent(
    re.search(r"(?s)    format = .*?protocol_schema_version = 1\n", recipe_manifest.__doc__)[0]
)
MEMBERS = [line.partition(" ")[0] for line in EXAMPLE.splitlines() if line.count(" = ")][1:]


def recipe(**changes):
    return msgspec.structs.replace(parse_manifest(EXAMPLE.encode()).recipes[0], **changes)


def refused(content):
    with pytest.raises(RecipeManifestError) as raised:
        parse_manifest(content.encode() if isinstance(content, str) else content)
    return str(raised.value)


def test_the_example_of_the_module_reads_renders_and_has_the_digest_that_is_told():
    manifest = parse_manifest(EXAMPLE.encode())
    assert manifest.recipes[0].runtime_recipe_digest in recipe_manifest.__doc__
    assert render(manifest.recipes) == EXAMPLE


def test_every_axis_and_label_is_a_member_of_the_example():
    assert set(MEMBERS) == {*RECIPE_AXES, "recipe_id", "recipe_version", "catalogue_version"}


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_that_is_left_out_is_refused_by_name_and_never_defaulted(member):
    without = "\n".join(line for line in EXAMPLE.splitlines() if not line.startswith(f"{member} ="))
    assert f"recipe.{member}: found nothing" in refused(without)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (EXAMPLE + 'flavour = "mint"\n', "1 unknown member"),
        (EXAMPLE.replace("[[recipe]]", "[recipe]"), "[[recipe]]"),
        (EXAMPLE.replace("manifest.v1", "manifest.v2"), "format"),
        (EXAMPLE.partition("\n")[2], "format"),
        ('colour = "red"\n' + EXAMPLE, "'colour'"),
        (EXAMPLE.replace("schema_version = 1", "schema_version = 1.0"), "boundary_schema_version"),
        (EXAMPLE.replace("schema_version = 1", "schema_version = true"), "boundary_schema_version"),
        (EXAMPLE.replace('"float32"', "1979-05-27"), "recipe.activation_dtype"),
        (re.sub("(tokenizer_revision = ).*", r'\1"main"', EXAMPLE), "tokenizer_revision"),
        (EXAMPLE.replace('"llama"', '" "'), "architecture_adapter"),
        (EXAMPLE + EXAMPLE.partition("\n")[2], "twice"),
        (EXAMPLE + "\n[[recipe]]\n", "recipe 2"),
        ('format = "meshnet.recipe-manifest.v1"\n', "no recipe"),
        (EXAMPLE.replace('"llama"', '"llama'), "not TOML"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_wrong_is_refused_and_the_fault_named(changed, named):
    assert named in refused(changed)


def test_all_recipes_that_are_wrong_are_named_at_once():
    said = refused(EXAMPLE + "\n[[recipe]]\nrecipe_id = 3\n\n[[recipe]]\nkv_dtype = 1\n")
    assert "recipe 2: " in said
    assert "recipe 3: " in said


@pytest.mark.parametrize(
    "content",
    [
        b"a." * 32_000 + b"b=1",
        b"a=" + b"[" * 8_000,
        b"x=" + b"{a=" * 2_000,
        b"x=" + b"9" * 8_000,
        b"x=0x" + b"f" * 8_000,
        b"\xff\xfe",
        b"\x00",
        b'"' * 65_000,
        b"[[recipe]]\n" * 5_000,
        b"# " * MAX_MANIFEST,
        EXAMPLE.encode() + b"\n" * MAX_MANIFEST,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_hostile_bytes_are_refused_within_a_moment_and_in_few_words(content):
    assert len(refused(content)) < 4_000


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: (EXAMPLE + text).encode()))
def test_whatever_bytes_come_nothing_but_a_refusal_is_raised(content):
    with contextlib.suppress(RecipeManifestError):
        parse_manifest(content)


TEXTS = st.text(min_size=1, max_size=60)


@given(st.builds(dict, kv_layout=TEXTS, runtime_version=TEXTS, recipe_id=TEXTS))
def test_what_is_rendered_reads_back_the_same_whatever_the_texts_hold(texts):
    try:
        made = recipe(**texts)
    except RecipeIdentityError:
        return
    assert parse_manifest(render([made]).encode()).recipes == (made,)


def test_one_recipe_is_chosen_by_all_that_is_named():
    one, newer = recipe(), recipe(recipe_version="2", kv_dtype="f16")
    other = recipe(backend_id="llama.cpp", runtime_version="b7421")
    manifest = RecipeManifest((one, newer, other))
    assert manifest.recipe("tiny-f32", "2") == newer
    assert manifest.recipe(backend_id="llama.cpp") == other
    assert manifest.recipe("tiny-f32", "1", "reference-numpy") == one
    assert RecipeManifest((one,)).recipe() == one


@pytest.mark.parametrize("asked", [(), ("tiny-f32",), ("tiny-f32", "3"), (None, "2", "llama.cpp")])
def test_where_not_just_one_recipe_is_meant_all_are_listed(asked):
    manifest = RecipeManifest(
        (recipe(), recipe(recipe_version="2"), recipe(backend_id="llama.cpp"))
    )
    with pytest.raises(NoSuchRecipe) as raised:
        manifest.recipe(*asked)
    for part in ("'tiny-f32' version '2' on 'reference-numpy'", "on 'llama.cpp'"):
        assert part in str(raised.value)
    for value in asked:
        assert value is None or repr(value) in str(raised.value)
    assert ("which one is meant was not said" in str(raised.value)) == (not asked)


def test_a_manifest_is_written_whole_and_loads_the_same(tmp_path):
    path = tmp_path / "recipes.toml"
    write_manifest(path, [recipe(), recipe(recipe_version="2")])
    assert load_manifest(path) == RecipeManifest((recipe(), recipe(recipe_version="2")), str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["recipes.toml"]


def test_nothing_is_written_that_could_not_be_read(tmp_path):
    many = [recipe(recipe_version=str(number)) for number in range(200)]
    with pytest.raises(RecipeManifestError, match="larger"):
        write_manifest(tmp_path / "recipes.toml", many)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(RecipeManifestError, match="no regular file"):
            load_manifest(path)
    with pytest.raises(FileNotFoundError):
        load_manifest(tmp_path / "absent")


def test_a_recipe_made_in_code_with_defaults_is_written_with_all_of_them_stated(tmp_path):
    made = RuntimeRecipe("Q8_0", *["float32"] * 3, "flat", "ab" * 20, "llama", "b", "1")
    assert 'recipe_id = "unnamed"' in render([made])
    assert "boundary_schema_version = " in render([made])
