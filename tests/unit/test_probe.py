"""The probe: a bounded real forward, judged without trusting whoever computes it.

A third party's backend computes a real model here; what a bad one would do is bent into it.
"""

import asyncio
import hashlib
import math
import re
import struct
import sys
from array import array

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshnet_node import challenge
from meshnet_node.admission import AdmissionRequirement, CapabilityAdmissionError, admit
from meshnet_node.backends import BackendError, NotFinite, Step
from meshnet_node.capability import NO_OUTPUT_DIGEST, CapabilityContext, ShardSelection
from meshnet_node.challenge import FLOAT32, UnknownDtype, activations, dtype_of, token_ids
from meshnet_node.doctor import probe_capability
from meshnet_node.foreign import MAX_TEXT
from meshnet_node.pin import pin
from meshnet_node.probe import PROMPT, STEPS, measure
from meshnet_node.recipe_identity import RECIPE_AXES, RuntimeRecipe
from meshnet_node.running import differences

NOW = 1_790_000_000.0
DTYPES = ("float32", "float16", "bfloat16")
WHOLE, FIRST, LAST = (0, 2), (0, 1), (1, 2)
MIDDLE = "middle"
NAN, INFINITY = math.nan, math.inf


@pytest.fixture(scope="module")
def toy(acme_toy, tmp_path_factory):
    """The third party's module, and a model file for it."""
    from acme_toy.make_model import write

    acme_toy.path = tmp_path_factory.mktemp("model") / "toy.gguf"
    write(acme_toy.path)
    return acme_toy


class Bent:
    """Something that behaves as `inner` but for what is named; a function is called with `inner`."""

    def __init__(self, inner, **bends):
        self.inner, self.bends = inner, bends

    def __getattr__(self, name):
        if name not in self.bends:
            return getattr(self.inner, name)
        bend = self.bends[name]
        return bend(self.inner) if callable(bend) else bend


class Bends:
    """Shards of the toy whose slots are bent."""

    def __init__(self, toy):
        self.toy = toy

    def shard(self, layers=WHOLE):
        return self.toy.ToyBackend().load(
            [self.toy.path], start=layers[0], end=layers[1], device="cpu"
        )

    def steps(self, layers, change):
        """A shard whose forwards give `change(step, how many forwards there were)` instead."""
        count = 0

        def bent_slot(slot):
            def forward(call):
                def bent(data, *, sample):
                    nonlocal count
                    count += 1
                    return change(call(data, sample=sample), count)

                return bent

            return Bent(
                slot,
                forward_tokens=lambda inner: forward(inner.forward_tokens),
                forward_activations=lambda inner: forward(inner.forward_activations),
            )

        shard = self.shard(layers)
        return Bent(shard, open=lambda inner: lambda *a, **k: bent_slot(inner.open(*a, **k)))


@pytest.fixture
def bends(toy):
    return Bends(toy)


@pytest.fixture
def context(toy):
    return make_context(toy)


def make_context(toy, layers=WHOLE, backend=None, **changes):
    shard = Bends(toy).shard(layers)
    recipe = RuntimeRecipe(**{"tokenizer_revision": "none-1.0", "recipe_id": "toy", **shard.axes})
    return CapabilityContext(
        backend=backend or toy.ToyBackend(),
        selection=ShardSelection(pin([toy.path]).artifact, *layers),
        recipe=msgspec.structs.replace(recipe, **changes),
        manifest=None,
        device="cpu",
    )


def report_of(toy, shard, layers=WHOLE, **changes):
    """The report about a backend that loads `shard`."""
    backend = Bent(toy.ToyBackend(), load=lambda _: lambda files, **k: shard)
    return probe_capability(make_context(toy, layers, backend, **changes), files=[toy.path])


def logits(step, **values):
    """The step with some logits replaced."""
    numbers = array("f", step.logits)
    for index, value in values.items():
        numbers[int(index[1:])] = value
    return Step(token=step.token, logits=memoryview(numbers))


# -- the challenge --------------------------------------------------------------------------------


def test_the_examples_of_the_challenge_are_right():
    ids = re.search(r"vocabulary 96 +(.*), …", challenge.__doc__)[1]
    assert ids == ", ".join(map(str, token_ids(96, 0, 4)))
    numbers = re.search(r"    numbers +(.*), …", challenge.__doc__)[1]
    found = struct.unpack("<4f", activations(FLOAT32, 16, 0, 1))
    assert numbers == ", ".join(map(repr, found))


def test_the_challenge_is_what_its_module_says_computed_another_way():
    def stream(kind):
        head = f"meshnet.doctor-challenge.v1\n{kind}\n".encode()
        return b"".join(
            hashlib.sha256(head + struct.pack("<Q", number)).digest() for number in range(40)
        )

    assert token_ids(7, 3, 90) == tuple(
        struct.unpack_from("<I", stream("tokens"), 4 * place)[0] % 7 for place in range(3, 93)
    )
    numbers = struct.unpack("<60f", activations(FLOAT32, 80, 2, 3))
    assert numbers == tuple((2 * byte - 255) / 128 for byte in stream("activations")[40:100])


def test_every_dtype_holds_the_same_numbers_exactly():
    def floats(name, data):
        if name == "bfloat16":
            data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        code = "e" if name == "float16" else "f"
        return struct.unpack(f"<600{code}", data)

    found = {
        floats(name, activations(dtype_of(name), 60 * dtype_of(name).size, 0, 10))
        for name in DTYPES
    }
    assert len(found) == 1
    (numbers,) = found
    assert 0.9 < sum(number * number for number in numbers) / 600 < 1.8


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_of_all_numbers_of_two_bytes_just_those_that_are_not_finite_are_found(name):
    for bits in range(1 << 16):
        data = struct.pack("<H", bits)
        (number,) = (
            struct.unpack("<e", data) if name == "float16" else struct.unpack("<f", b"\0\0" + data)
        )
        assert dtype_of(name).not_finite(data) == (None if math.isfinite(number) else 0), hex(bits)


@given(st.lists(st.floats(width=32), min_size=1))
@example([3.4028234663852886e38, -1e-45, 0.0, -0.0])
def test_the_first_number_that_is_not_finite_is_found(numbers):
    bad = next((at for at, number in enumerate(numbers) if not math.isfinite(number)), None)
    assert FLOAT32.not_finite(struct.pack(f"<{len(numbers)}f", *numbers)) == bad


def test_a_dtype_that_cannot_be_judged_is_an_error_that_says_so():
    with pytest.raises(UnknownDtype, match=r"fp8_e4m3.*float32, float16, bfloat16"):
        dtype_of("fp8_e4m3")


# -- what passes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [WHOLE, FIRST, LAST])
def test_a_sound_shard_passes_and_its_report_admits_just_that(toy, layers):
    context = make_context(toy, layers)
    report = probe_capability(context, files=[toy.path], now=lambda: NOW)
    assert (report.status, report.diagnostics) == ("passed", ())
    assert report.tokens == PROMPT + STEPS
    assert report.validated_at == NOW
    assert admit(AdmissionRequirement.for_context(context), report, now=NOW) is report
    other = AdmissionRequirement.for_context(make_context(toy, layers, kv_layout="other"))
    with pytest.raises(CapabilityAdmissionError, match="recipe-mismatch"):
        admit(other, report, now=NOW)
    report.to_fact()


def test_the_output_of_a_whole_model_is_the_tokens_it_was_fed_back(bends):
    shard = bends.shard()
    slot = shard.open(*WHOLE)
    step = slot.forward_tokens(token_ids(shard.vocabulary, 0, PROMPT), sample=True)
    tokens = [step.token]
    for _ in range(STEPS):
        tokens.append(slot.forward_tokens([tokens[-1]], sample=True).token)
    expected = hashlib.sha256(struct.pack(f"<{STEPS + 1}I", *tokens)).hexdigest()
    assert measure(shard, *WHOLE).output_digest == expected
    assert measure(shard, *WHOLE, recorded=expected).status == "passed"


def test_the_output_of_a_first_hop_is_its_activations(bends):
    shard = bends.shard(FIRST)
    ids = token_ids(shard.vocabulary, 0, PROMPT + STEPS)
    whole = shard.open(*FIRST).forward_tokens(ids, sample=False).activations
    assert measure(shard, *FIRST).output_digest == hashlib.sha256(whole).hexdigest()


def test_a_part_of_the_layers_that_are_held_can_be_proven(bends):
    within, alone = measure(bends.shard(WHOLE), *LAST), measure(bends.shard(LAST), *LAST)
    assert within.status == "passed"
    assert within.output_digest == alone.output_digest


@pytest.mark.parametrize("room", [1, 2, PROMPT + STEPS - 1])
def test_a_short_context_is_not_overrun(bends, room):
    shard = Bent(bends.shard(), context_length=room)
    assert (measure(shard, *WHOLE).status, measure(shard, *WHOLE).tokens) == ("passed", room)


def test_a_shard_that_was_loaded_for_its_proof_is_given_back(toy, bends):
    closed = []
    shard = Bent(bends.shard(), close=lambda inner: lambda: closed.append(inner))
    assert report_of(toy, shard).passed
    assert closed == [shard.inner]


# -- what ran and is wrong ------------------------------------------------------------------------


def with_number(step, value, at=-4):
    data = bytearray(step.activations)
    struct.pack_into("<f", data, len(data) + at if at < 0 else at, value)
    return Step(activations=bytes(data))


def always(greatest=1.0):
    """A step that depends on nothing: token 0, for it has the greatest logit."""
    return Step(token=0, logits=memoryview(array("f", [greatest] + [0.0] * 31)))


@pytest.mark.parametrize(
    ("layers", "change", "said"),
    [
        (FIRST, lambda s, n: with_number(s, NAN), f"not finite: activations of position {PROMPT - 1}"),
        (FIRST, lambda s, n: with_number(s, -INFINITY, 32), "position 1 hold a NaN or an infinity at 0"),
        (FIRST, lambda s, n: with_number(s, NAN) if n > 8 else s, f"position {PROMPT + STEPS - 1}"),
        (FIRST, lambda s, n: Step(activations=s.activations[:-1]), "255 bytes for 8 positions"),
        (FIRST, lambda s, n: Step(activations=s.activations * 2), "expected 256 bytes"),
        (FIRST, lambda s, n: Step(activations=bytearray(s.activations)), "found a bytearray"),
        (FIRST, lambda s, n: Step(activations=s.activations, token=1), "before the last layer"),
        (FIRST, with_number, "not deterministic"),
        (FIRST, lambda s, n: s.activations, "a forward gave a bytes"),
        (LAST, lambda s, n: logits(s, _3=NAN), "logit of token 3"),
        (LAST, lambda s, n: logits(s, _31=INFINITY), "logit of token 31"),
        (LAST, lambda s, n: logits(s, **{f"_{(s.token + 1) % 32}": 1e9}), "whose logit is the greatest"),
        (LAST, lambda s, n: logits(s, _5=n * 1e-6), "not deterministic"),
        (LAST, lambda s, n: Step(token=32, logits=s.logits), "found 32, expected an id below 32"),
        (LAST, lambda s, n: Step(token=-1, logits=s.logits), "found -1"),
        (LAST, lambda s, n: Step(token=True, logits=s.logits), "found a bool"),
        (LAST, lambda s, n: Step(logits=s.logits), "token: found nothing"),
        (LAST, lambda s, n: Step(token=s.token), "logits: found nothing"),
        (LAST, lambda s, n: Step(token=s.token, logits=s.logits[:-1]), "logits: found 124 bytes"),
        (LAST, lambda s, n: Step(b"\0" * 32, s.token, s.logits), "out of the last layer"),
        (WHOLE, lambda s, n: Step(token=99, logits=s.logits), "found 99"),
        (FIRST, lambda s, n: Step(bytes(len(s.activations))), "constant: 11 positions that differ gave"),
        (LAST, lambda s, n: always(), "constant: 5 positions that differ gave the same logits"),
        (WHOLE, lambda s, n: always(), "that differ gave the same logits"),
        (LAST, lambda s, n: always(0.0), "constant: the logits of all 32 tokens are equal"),
    ],
)  # fmt: skip
def test_numbers_that_are_wrong_fail_and_say_where(bends, layers, change, said):
    measured = measure(bends.steps(layers, change), *layers)
    assert measured.status == "failed"
    assert said in measured.faults[0]
    assert measured.output_digest == NO_OUTPUT_DIGEST


def test_of_equal_logits_the_smallest_id_is_the_token(bends):
    def tie(step, _):
        numbers = array("f", [0.0] * 32)
        numbers[4] = numbers[9] = 3.0
        return Step(token=9, logits=memoryview(numbers))

    assert "found 9, expected 4" in measure(bends.steps(LAST, tie), *LAST).faults[0]


def test_the_same_may_come_of_positions_that_do_not_differ(bends):
    same = bends.steps(FIRST, lambda step, _: Step(bytes(len(step.activations))))
    assert measure(Bent(same, vocabulary=1), *FIRST).status == "passed"
    assert measure(Bent(same, vocabulary=2), *FIRST).status == "failed"


def part(bends, layers):
    """A shard of the toy; the one in the middle is its last layer, of a model that goes on."""
    shard = bends.shard(LAST if layers == MIDDLE else layers)
    shard.layer_count = 3 if layers == MIDDLE else 2
    return shard


def forgetting(shard, when):
    """`shard`, whose slots forget what came before: `when` a forward is over, or at every position."""

    def opened(inner):
        def open_(*given, **how):
            slot = inner.open(*given, **how)
            name = "_forward" if when == "forward" else "_through_layers"
            honest = getattr(slot, name)

            def then_forget(*data):
                step = honest(*data)
                slot.sums = {n: [0.0] * shard.width for n in slot.sums}
                return step

            setattr(slot, name, then_forget)
            return slot

        return open_

    return Bent(shard, open=opened)


@pytest.mark.parametrize("when", ["forward", "position"])
@pytest.mark.parametrize("layers", [WHOLE, FIRST, MIDDLE, LAST])
def test_a_backend_in_which_nothing_shows_of_what_came_before_is_found_out(bends, layers, when):
    shard, layers = part(bends, layers), LAST if layers == MIDDLE else layers
    assert measure(shard, *layers).status == "passed"
    measured = measure(forgetting(shard, when), *layers)
    assert measured.status == "failed"
    what = "logits" if layers[1] == shard.layer_count else "activations"
    assert f"history: the same position after 8 others gave the same {what}" in measured.faults[0]
    assert measured.output_digest == NO_OUTPUT_DIGEST


def test_a_cache_is_asked_for_what_came_before_wherever_something_can(bends):
    shard = bends.shard(FIRST)
    for room, status in ((2, "failed"), (1, "passed")):
        assert (
            measure(Bent(forgetting(shard, "forward"), context_length=room), *FIRST).status
            == status
        )
    # nothing else can have come before
    assert measure(Bent(forgetting(shard, "forward"), vocabulary=1), *FIRST).status == "passed"


def test_a_shard_that_passes_on_what_goes_in_is_found_out(bends):
    shard = part(bends, MIDDLE)

    def opened(inner):
        def open_(*given, **how):
            slot = inner.open(*given, **how)

            def pass_on(data, *, sample):
                slot.position += len(data) // shard.position_bytes
                return Step(activations=data)

            slot.forward_activations = pass_on
            return slot

        return open_

    measured = measure(Bent(shard, open=opened), *LAST)
    assert measured.status == "failed"
    assert "identity: activations came out byte for byte as they went in" in measured.faults[0]


def test_slots_that_share_a_cache_are_found_out(bends):
    shard = bends.shard(FIRST)
    slot = shard.open(*FIRST)
    shared = Bent(shard, open=lambda _: lambda *a, **k: slot)
    measured = measure(shared, *FIRST)
    assert measured.status == "failed"
    assert "not deterministic" in measured.faults[0]


def test_a_slot_that_miscounts_is_found_out(bends):
    shard = bends.shard(FIRST)
    lying = Bent(
        shard, open=lambda inner: lambda *a, **k: Bent(inner.open(*a, **k), position=lambda _: 1)
    )
    assert "position: found 1, expected 8" in measure(lying, *FIRST).faults[0]


def test_a_backend_that_finds_its_own_numbers_not_finite_has_run_and_failed(bends):
    def refuse(step, count):
        raise NotFinite("position 3 is a NaN")

    measured = measure(bends.steps(WHOLE, refuse), *WHOLE)
    assert (measured.status, measured.faults) == ("failed", ("NotFinite: position 3 is a NaN",))


def test_a_weight_that_is_no_number_fails(toy, tmp_path):
    from acme_toy.make_model import write

    path = tmp_path / "nan.gguf"
    write(path, spoil=lambda tensors: tensors["blk.1.mix.weight"].__setitem__((3, 3), NAN))
    report = probe_capability(make_context(toy), files=[path])
    assert report.status == "failed"
    assert "no longer finite" in report.diagnostics[0]
    # the same weight is not among those of the first hop
    assert probe_capability(make_context(toy, FIRST), files=[path]).passed


def test_an_output_that_is_not_the_recorded_one_fails_and_tells_both(bends):
    measured = measure(bends.shard(), *WHOLE, recorded="ab" * 32)
    assert measured.status == "failed"
    assert measured.output_digest in measured.faults[0]
    assert "ab" * 32 in measured.faults[0]


# -- what did not run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        ({"vocabulary": -1}, "vocabulary: found -1"),
        ({"vocabulary": True}, "vocabulary: found a bool"),
        ({"vocabulary": lambda _: sys.exit(3)}, "vocabulary: SystemExit: 3"),
        ({"vocabulary": 2**40}, "vocabulary"),
        ({"position_bytes": 30}, "position_bytes: found 30"),
        ({"position_bytes": 2**40}, "position_bytes"),
        ({"position_bytes": "32"}, "position_bytes"),
        ({"context_length": 0}, "context_length"),
        ({"end_tokens": [1]}, "end_tokens: found a list"),
        ({"end_tokens": frozenset({1, -2})}, "end_tokens: found -2"),
        ({"layer_count": 1}, "layers: found [0, 2) of 1"),
        ({"start": 1}, "layers: found [1, 2) of 2 loaded, expected [0, 2)"),
        ({"axes": {}}, "KeyError"),
        ({"axes": {"activation_dtype": "fp8_e4m3"}}, "fp8_e4m3"),
        ({"open": lambda _: 1 / 0}, "ZeroDivisionError"),
        ({"open": lambda _: lambda *a, **k: None}, "NoneType"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_shard_that_cannot_be_asked_is_an_error_and_nothing_raises(toy, bends, bend, said):
    report = report_of(toy, Bent(bends.shard(), **bend))
    assert report.status == "error"
    assert report.tokens == 0
    assert said in " ".join(report.diagnostics)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (BackendError("no such tensor"), "BackendError: no such tensor"),
        (MemoryError(), "MemoryError"),
        (RecursionError("deep"), "RecursionError: deep"),
        (SystemExit(3), "SystemExit: 3"),
        (Mute(), "Mute: an error that cannot say what it is"),
        (ValueError("\ud800" * 5_000), "ValueError: \\ud800"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space"),
    ],
)
def test_whatever_a_backend_raises_ends_in_a_report_that_a_fact_can_hold(toy, bends, raised, said):
    def fail(*_, **__):
        raise raised

    backend = Bent(toy.ToyBackend(), load=lambda _: fail)
    loading = probe_capability(make_context(toy, backend=backend), files=[toy.path])
    computing = report_of(toy, bends.steps(WHOLE, fail))
    closing = report_of(toy, Bent(bends.shard(), close=lambda _: fail))
    for report, where, status in (
        (loading, "load", "error"),
        (computing, "forward", "error"),
        (closing, "close", "failed"),
    ):
        assert report.status == status
        assert report.diagnostics[0].startswith(f"{where}: {said}")
        assert all(len(text) <= MAX_TEXT for text in report.diagnostics)
        report.to_fact()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_what_stops_the_process_or_the_task_goes_through(toy, bends, stop):
    def interrupt(step, count):
        raise stop

    with pytest.raises(stop):
        report_of(toy, bends.steps(WHOLE, interrupt))


def test_a_backend_that_will_not_say_whether_it_is_synthetic_is_taken_to_be(toy):
    backend = Bent(toy.ToyBackend(), synthetic=lambda _: 1 / 0)
    assert probe_capability(make_context(toy, backend=backend), files=[toy.path]).synthetic
    assert not probe_capability(make_context(toy), files=[toy.path]).synthetic


# -- what runs and what was declared --------------------------------------------------------------


def other(value):
    return value + 1 if isinstance(value, int) else f"{value}-other"


@pytest.mark.parametrize(
    "axis", [a for a in RECIPE_AXES if a not in {"tokenizer_revision", "backend_id"}]
)
def test_an_axis_that_runs_otherwise_than_declared_fails_and_is_named(toy, axis):
    declared = other(make_context(toy).recipe.axes[axis])
    report = probe_capability(make_context(toy, **{axis: declared}), files=[toy.path])
    assert report.status == "failed"
    assert len(report.diagnostics) == 1
    check = "version" if axis == "runtime_version" else "layout"
    assert report.diagnostics[0].startswith(f"{check}: {axis}: declared {declared!r}, running ")


def test_a_layout_that_only_the_loaded_shard_knows_is_compared(toy, bends):
    shard = bends.shard()
    settled = Bent(shard, axes={**shard.axes, "kv_layout": "paged-16/HND"})
    report = report_of(toy, settled)
    assert report.status == "failed"
    assert report.diagnostics == ("layout: kv_layout: declared 'mean', running 'paged-16/HND'",)


def test_an_axis_left_unsaid_or_unheard_of_is_a_difference_but_for_the_tokenizer(bends, context):
    shard = bends.shard()
    axes = {**shard.axes, "rope": "yarn", "tokenizer_revision": "cd" * 20}
    del axes["kv_dtype"]
    found = {
        one.axis: one.describe()
        for one in differences(context.recipe, context.backend, Bent(shard, axes=axes))
    }
    assert set(found) == {"rope", "tokenizer_revision", "kv_dtype"}
    assert "nothing that says so" in found["kv_dtype"]
    assert differences(context.recipe, context.backend, shard) == ()


def test_the_version_of_the_backend_counts_as_well_as_that_of_what_it_loaded(toy, bends, context):
    backend = Bent(toy.ToyBackend(), runtime_version="0.9")
    assert [one.describe() for one in differences(context.recipe, backend, bends.shard())] == [
        "runtime_version: declared '1.0', running '0.9'"
    ]


def test_many_faults_are_told_in_bounded_texts_that_a_fact_can_hold(toy, bends):
    shard = bends.shard()
    axes = {**shard.axes, **{f"x{number}": "y" * 5_000 for number in range(60)}}
    report = report_of(toy, Bent(shard, axes=axes))
    (told,) = report.diagnostics
    assert told.startswith("layout: x0: declared 'no such axis'")
    assert len(told) == MAX_TEXT
    report.to_fact()
