"""Locked targets: what is shipped, what is checked on load, how a lock is completed."""

import hashlib
import json

import msgspec
import pytest

from meshnet_node import targets
from meshnet_node.recipe_identity import (
    ArtifactIdentity,
    DerivativeBinding,
    RecipeIdentityError,
    RuntimeRecipe,
    canonical_sha256,
    glm_alpha_artifact,
)
from meshnet_node.targets import (
    ArchitectureFacts,
    LockedFile,
    LockedTarget,
    LockedTargetError,
    TargetFacts,
    TargetNotLocked,
    UnknownTarget,
    load_locked_target,
    load_target_facts,
    own_lock,
    read_locked_target,
    with_forward,
    write_locked_target,
)

PARTS = (b"first part", b"second part")
CUT_DIGEST = hashlib.sha256(b"a cut of it").hexdigest()


@pytest.fixture(autouse=True)
def own_targets(tmp_path, monkeypatch):
    """A user's folder of locks that holds none yet."""
    monkeypatch.setattr(targets.platformdirs, "user_config_path", lambda app: tmp_path / app)
    return targets.target_directory()


def locked(name="glm_alpha", parts=PARTS):
    facts = TargetFacts(
        name, "unsloth/GLM-5.2-GGUF", "UD-IQ1_S", ArchitectureFacts("glm_moe_dsa", 78, 79)
    )
    files = tuple(
        LockedFile(f"m-{number}.gguf", len(part), hashlib.sha256(part).hexdigest())
        for number, part in enumerate(parts, start=1)
    )
    artifact = ArtifactIdentity(
        artifact_id=facts.repository,
        revision=hashlib.sha1(b"a commit").hexdigest(),
        content_digest=targets.set_digest([file.sha256 for file in files]),
        architecture="glm_moe_dsa",
        architecture_digest=hashlib.sha256(b"its keys").hexdigest(),
        layer_count=78,
    )
    return LockedTarget(facts, artifact, files, {"weight_quantization": "F32:2"})


def edited(path, change):
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
    return path


def test_the_shipped_glm_target_has_its_facts():
    facts = load_target_facts("glm_alpha")
    assert facts.repository == "unsloth/GLM-5.2-GGUF"
    assert facts.quantization == "UD-IQ1_S"
    assert facts.architecture == ArchitectureFacts("glm_moe_dsa", 78, 79)


def test_the_shipped_glm_target_says_that_it_is_not_locked_and_how_to_lock_it(own_targets):
    for load in (lambda: load_locked_target("glm_alpha"), glm_alpha_artifact):
        with pytest.raises(TargetNotLocked) as refusal:
            load()
        text = str(refusal.value)
        for part in (
            "revision",
            "content_digest",
            "architecture_digest",
            "unsloth/GLM-5.2-GGUF",
            "meshnet node pin",
            str(own_targets / "glm_alpha.json"),
        ):
            assert part in text


def test_the_shipped_gemma_target_is_locked():
    target = load_locked_target("gemma-3-270m-q4-k-m")
    assert target.artifact.layer_count == 18
    assert target.artifact.revision == f"sha256:{target.files[0].sha256}"
    assert "blk.17" in target.tensors
    assert target.forward is not None


def test_a_target_that_nobody_made_is_told_apart_from_a_broken_one(own_targets):
    with pytest.raises(UnknownTarget, match=r"only: .*glm_alpha") as refusal:
        load_target_facts("nobody")
    assert f"no nobody.json in {own_targets}, where a lock that you were given goes" in str(
        refusal.value
    )
    own_targets.mkdir(parents=True)
    (own_targets / "nobody.json").write_text("{}")
    with pytest.raises(LockedTargetError) as refusal:
        load_target_facts("nobody")
    assert not isinstance(refusal.value, UnknownTarget)


def test_no_shipped_target_holds_a_made_up_digest():
    for path in targets._SHIPPED.glob("*.json"):
        try:
            read_locked_target(path)
        except TargetNotLocked:
            assert json.loads(path.read_text("utf-8"))["lock"] is None


def test_a_lock_in_the_users_folder_completes_the_shipped_target(own_targets):
    target = locked()
    write_locked_target(own_targets / "glm_alpha.json", target)
    assert load_locked_target("glm_alpha") == target
    assert glm_alpha_artifact() == target.artifact
    assert glm_alpha_artifact(content_digest=target.artifact.content_digest) == target.artifact
    assert list(own_targets.iterdir()) == [own_targets / "glm_alpha.json"]


def test_the_whole_artifact_must_be_the_locked_one(own_targets):
    write_locked_target(own_targets / "glm_alpha.json", locked())
    with pytest.raises(RecipeIdentityError, match=r"artifact\.content_digest"):
        glm_alpha_artifact(content_digest=CUT_DIGEST)


def test_a_cut_routes_under_the_digest_of_its_target(own_targets):
    whole = locked().artifact
    write_locked_target(own_targets / "glm_alpha.json", locked())
    cut = glm_alpha_artifact(
        DerivativeBinding(whole.content_digest, 0, 9), content_digest=CUT_DIGEST
    )
    assert (cut.content_digest, cut.derived_from.shard_end) == (CUT_DIGEST, 9)
    assert cut.model_artifact_digest == whole.model_artifact_digest


def test_a_cut_that_is_not_of_the_target_is_refused(own_targets):
    whole = locked().artifact
    write_locked_target(own_targets / "glm_alpha.json", locked())
    other = hashlib.sha256(b"another model").hexdigest()
    for binding, digest, field in (
        (DerivativeBinding(other, 0, 9), CUT_DIGEST, "derived_from.source_artifact_digest"),
        (DerivativeBinding(whole.content_digest, 0, 79), CUT_DIGEST, "derived_from.shard_end"),
        (DerivativeBinding(whole.content_digest, 0, 9), None, "artifact.content_digest"),
    ):
        with pytest.raises(RecipeIdentityError, match=field):
            glm_alpha_artifact(binding, content_digest=digest)


def test_the_digest_of_one_file_is_its_own_and_of_a_set_depends_on_the_order():
    first, second = (hashlib.sha256(part).hexdigest() for part in PARTS)
    assert targets.set_digest([first]) == first
    assert targets.set_digest([first, second]) == canonical_sha256(
        {"domain": "meshnet.artifact-set.v1", "body": {"files": [first, second]}}
    )
    assert targets.set_digest([first, second]) != targets.set_digest([second, first])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c["lock"]["files"].reverse(), "artifact.content_digest"),
        (lambda c: c["lock"]["files"].clear(), "files"),
        (lambda c: c["lock"]["files"][0].update(sha256="A" * 64), "sha256"),
        (lambda c: c["lock"]["files"][0].update(sha256="a" * 64 + "\n"), "sha256"),
        (lambda c: c["lock"]["artifact"].update(content_digest=CUT_DIGEST), "content_digest"),
        (lambda c: c["lock"]["artifact"].update(revision="main"), "artifact.revision"),
        (lambda c: c["lock"]["artifact"].update(layer_count=79), "artifact.layer_count"),
        (lambda c: c["lock"]["artifact"].update(artifact_id="x/y"), "artifact.artifact_id"),
        (lambda c: c["lock"]["artifact"].update(architecture="llama"), "model_artifact_digest"),
        (
            lambda c: c["lock"]["artifact"].update(architecture_digest=CUT_DIGEST),
            "model_artifact_digest",
        ),
        (
            lambda c: c["lock"]["artifact"].update(
                derived_from={
                    "source_artifact_digest": CUT_DIGEST,
                    "shard_start": 0,
                    "shard_end": 9,
                }
            ),
            "artifact.derived_from",
        ),
        (lambda c: c["lock"]["recipe"].update(colour="red"), "recipe"),
        (lambda c: c["architecture"].update(num_hidden_layers=80), "num_hidden_layers"),
        (lambda c: c["architecture"].update(num_hidden_layers=0), "num_hidden_layers"),
        (lambda c: c.update(name="other"), "name"),
        (lambda c: c.update(format="meshnet.locked-target.v2"), "format"),
        (lambda c: c.update(colour="red"), "colour"),
        (lambda c: c.pop("repository"), "repository"),
    ],
)
def test_a_lock_that_does_not_add_up_is_refused_by_the_name_of_its_member(
    own_targets, change, named
):
    path = own_targets / "glm_alpha.json"
    write_locked_target(path, locked())
    load_locked_target("glm_alpha")
    with pytest.raises(LockedTargetError) as refusal:
        read_locked_target(edited(path, change))
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff{",
        b'{"lock":{"artifact":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_002,
        b'{"colour":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_file_that_is_not_json_or_nested_too_deep_is_refused(own_targets, content):
    own_targets.mkdir(parents=True)
    (own_targets / "tiny.json").write_bytes(content)
    with pytest.raises(LockedTargetError, match="not a locked target"):
        load_locked_target("tiny")


def test_a_target_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(LockedTargetError, match="glm_alpha"):
        load_locked_target("gpt-alpha")


@pytest.mark.parametrize("name", ["../glm_alpha", "", "a/b", "a.b", "x.json", "é", "glm_alpha\n"])
def test_a_name_cannot_leave_the_folder(name):
    with pytest.raises(LockedTargetError, match="expected a name"):
        own_lock(name)


def test_a_lock_that_was_handed_over_is_named_by_its_path(tmp_path, monkeypatch, own_targets):
    target = locked(name="handed")
    write_locked_target(tmp_path / "from-ada" / "handed.json", target)
    monkeypatch.chdir(tmp_path / "from-ada")
    for named in (str(tmp_path / "from-ada" / "handed.json"), "./handed.json", "handed.json"):
        assert load_locked_target(named) == target
        assert load_target_facts(named) == target.facts
    with pytest.raises(UnknownTarget, match=r"no handed\.json in"):
        load_locked_target("handed")
    own_targets.mkdir(parents=True)
    (tmp_path / "from-ada" / "handed.json").rename(own_targets / "handed.json")
    assert load_locked_target("handed") == target
    with pytest.raises(UnknownTarget, match=r"there is no file from-ada/handed\.json"):
        load_locked_target("from-ada/handed.json")
    (own_targets / "handed.json").rename(own_targets / "other.json")
    with pytest.raises(LockedTargetError, match="found 'handed', expected 'other'"):
        load_locked_target("other")


def test_a_lock_is_written_under_the_name_of_its_target(tmp_path):
    with pytest.raises(LockedTargetError, match=r"glm_alpha\.json"):
        write_locked_target(tmp_path / "other.json", locked())


def test_a_target_cannot_be_made_with_files_of_another_artifact():
    target = locked()
    with pytest.raises(LockedTargetError, match="content_digest"):
        msgspec.structs.replace(target, files=locked(parts=(b"x",)).files)


RECIPE = RuntimeRecipe("F32:2", *["float32"] * 3, "flat", "ab" * 20, "llama", "reference", "1")
OUTPUT = hashlib.sha256(b"its tokens").hexdigest()


def test_a_recorded_forward_is_kept_and_speaks_of_recipes_that_compute_alike(own_targets):
    path = own_targets / "glm_alpha.json"
    write_locked_target(path, with_forward(locked(), RECIPE, OUTPUT))
    target = load_locked_target("glm_alpha")
    assert target.recorded_output(RECIPE) == OUTPUT
    later = msgspec.structs.replace(RECIPE, runtime_version="2", kv_layout="paged")
    assert target.recorded_output(later) == OUTPUT
    for axis in targets.FORWARD_AXES:
        assert target.recorded_output(msgspec.structs.replace(RECIPE, **{axis: "other"})) is None
    edited(path, lambda c: c["lock"]["forward"].update(challenge="meshnet.doctor-challenge.v2"))
    assert read_locked_target(path).recorded_output(RECIPE) is None


GROUPS = ["token_embd.weight", "output_norm.weight", *(f"blk.{index}" for index in range(78))]
TENSORS = {group: hashlib.sha256(group.encode()).hexdigest() for group in GROUPS}


def test_digests_of_tensors_are_kept_and_may_be_left_out(own_targets):
    path = own_targets / "glm_alpha.json"
    target = msgspec.structs.replace(locked(), tensors=TENSORS)
    write_locked_target(path, target)
    assert load_locked_target("glm_alpha") == target
    edited(path, lambda c: c["lock"].pop("tensors"))
    assert load_locked_target("glm_alpha") == locked()
    write_locked_target(path, locked())
    assert "tensors" not in json.loads(path.read_text("utf-8"))["lock"]


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("blk.0"),
        lambda tensors: tensors.pop("blk.77"),
        lambda tensors: tensors.update({"blk.78": CUT_DIGEST}),
        lambda tensors: (tensors.pop("blk.7"), tensors.update({"blk.07": CUT_DIGEST})),
        lambda tensors: [tensors.pop(f"blk.{index}") for index in range(78)],
        lambda tensors: tensors.update({"blk.0": "AB" * 32}),
    ],
)
def test_digests_of_tensors_that_are_not_of_these_layers_are_refused(own_targets, change):
    path = own_targets / "glm_alpha.json"
    write_locked_target(path, msgspec.structs.replace(locked(), tensors=TENSORS))
    with pytest.raises(LockedTargetError, match="tensors"):
        read_locked_target(edited(path, lambda c: change(c["lock"]["tensors"])))


def test_a_target_without_a_forward_is_written_as_it_always_was(own_targets):
    path = own_targets / "glm_alpha.json"
    write_locked_target(path, locked())
    assert "forward" not in json.loads(path.read_text("utf-8"))["lock"]
    assert load_locked_target("glm_alpha").recorded_output(RECIPE) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda forward: forward["axes"].pop("kv_dtype"), "forward.axes"),
        (lambda forward: forward["axes"].update(colour="red"), "forward.axes"),
        (lambda forward: forward.update(output_digest="AB" * 32), "output_digest"),
        (lambda forward: forward.update(colour="red"), "colour"),
        (lambda forward: forward.pop("challenge"), "challenge"),
    ],
)
def test_a_recorded_forward_that_is_not_whole_is_refused(own_targets, change, named):
    path = own_targets / "glm_alpha.json"
    write_locked_target(path, with_forward(locked(), RECIPE, OUTPUT))
    with pytest.raises(LockedTargetError, match=named):
        read_locked_target(edited(path, lambda c: change(c["lock"]["forward"])))
