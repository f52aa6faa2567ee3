"""Files made to break a reader: each is a `PinError` that names the file, in bounded memory."""

import os
import struct
import tracemalloc

import pytest
from gguf import GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_files import SOUND_KEYS, SOUND_TENSORS, key, raw_gguf, tensor, text, write_model
from meshnet_node.pin import PinError, cut, pin

U32 = GGUFValueType.UINT32
STRING = GGUFValueType.STRING
ARRAY = GGUFValueType.ARRAY
HUGE = 2**64 - 1
NAME = "blk.0.attn_norm.weight"


def u32(number):
    return struct.pack("<I", number)


def u64(number):
    return struct.pack("<Q", number)


def with_key(data):
    return raw_gguf([*SOUND_KEYS, data])


def with_tensors(*entries, data=bytes(64), keys=SOUND_KEYS):
    return raw_gguf(keys, entries, data=data)


HOSTILE = {
    "empty": (b"", "ends inside the header"),
    "other format": (b"PK\3\4" + bytes(60), "not a GGUF file"),
    "text": (b"version https://git-lfs.github.com/spec/v1\n", "not a GGUF file"),
    "version 1": (raw_gguf(version=1), "GGUF version 1"),
    "version 2": (raw_gguf(version=2), "GGUF version 2.*convert"),
    "version 4": (raw_gguf(version=4), "GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 2), "big-endian.*convert"),
    "absurd tensor count": (raw_gguf(tensor_count=HUGE), "states 18446744073709551615 tensors"),
    "absurd key count": (raw_gguf(key_count=HUGE), "states 18446744073709551615 keys"),
    "more keys stated than held": (raw_gguf(key_count=3), "name of tensor 0"),
    "more tensors stated than held": (raw_gguf(tensor_count=2), "name of tensor 1"),
    "key name beyond the file": (raw_gguf([u64(1000) + b"x"]), "name of key 0"),
    "absurd key name": (raw_gguf([u64(HUGE) + b"x"]), "name of key 0"),
    "empty key name": (with_key(key("", U32, u32(1))), "0 bytes long"),
    "key name not UTF-8": (with_key(key(b"\xff\xfe", U32, u32(1))), "not UTF-8"),
    "key twice": (with_key(SOUND_KEYS[1]), r"llama\.block_count' twice"),
    "unknown value type": (with_key(key("x", 13, b"")), "unknown type 13"),
    "string beyond the file": (with_key(key("x", STRING, u64(10_000))), "value of 'x'"),
    "absurd string": (with_key(key("x", STRING, u64(HUGE))), "value of 'x'"),
    "array beyond the file": (with_key(key("x", ARRAY, u32(U32) + u64(10_000))), "value of 'x'"),
    "absurd array": (with_key(key("x", ARRAY, u32(U32) + u64(HUGE))), "value of 'x'"),
    "absurd array of strings": (
        with_key(key("x", ARRAY, u32(STRING) + u64(HUGE))),
        "arrays hold over",
    ),
    "array of strings beyond the file": (
        with_key(key("x", ARRAY, u32(STRING) + u64(1000))),
        "value of 'x'",
    ),
    "string in an array beyond the file": (
        with_key(key("x", ARRAY, u32(STRING) + u64(1) + u64(10_000))),
        "value of 'x'",
    ),
    "nested arrays": (
        with_key(key("x", ARRAY, (u32(ARRAY) + u64(1)) * 1000)),
        "array of type 9",
    ),
    "array of an unknown type": (with_key(key("x", ARRAY, u32(99) + u64(1))), "array of type 99"),
    "alignment 0": (with_key(key("general.alignment", U32, u32(0))), "power of two"),
    "alignment 24": (with_key(key("general.alignment", U32, u32(24))), "power of two"),
    "alignment 2 GiB": (with_key(key("general.alignment", U32, u32(1 << 31))), "power of two"),
    "alignment of another type": (
        with_key(key("general.alignment", GGUFValueType.UINT64, u64(32))),
        "u32 power of two",
    ),
    "tensor twice": (with_tensors(*SOUND_TENSORS, tensor(NAME, offset=32)), "twice"),
    "tensors overlap": (with_tensors(*SOUND_TENSORS, tensor("blk.0.b", offset=0)), "overlaps"),
    "tensor beyond the file": (with_tensors(tensor(NAME, offset=64)), "ends at byte"),
    "tensor longer than the file": (with_tensors(tensor(NAME, (1000,))), "ends at byte"),
    "absurd offset": (with_tensors(tensor(NAME, offset=HUGE - 31)), "ends at byte"),
    "sizes that wrap to zero in 64 bits": (
        with_tensors(tensor(NAME, (1 << 32, 1 << 32))),
        "ends at byte",
    ),
    "absurd dimensions": (with_tensors(tensor(NAME, (HUGE,) * 4)), "ends at byte"),
    "offset not aligned": (with_tensors(tensor(NAME, offset=4)), "not aligned to 32"),
    "too many dimensions": (with_tensors(tensor(NAME, (1,) * 5)), "5 dimensions"),
    "absurd number of dimensions": (with_tensors(text(NAME) + u32(2**32 - 1)), "dimensions"),
    "dimension of 0": (with_tensors(tensor(NAME, (4, 0))), "dimension of 0"),
    "row not of whole blocks": (with_tensors(tensor(NAME, (33,), kind=8)), "whole blocks of 32"),
    "unknown tensor type": (with_tensors(tensor(NAME, kind=999)), "unknown type 999"),
    "tensor type that was withdrawn": (with_tensors(tensor(NAME, kind=4)), "unknown type 4"),
    "absurd tensor name": (with_tensors(u64(HUGE)), "name of tensor 0"),
    "data cut off": (raw_gguf(data=b""), "ends at byte.*download it again"),
    "no architecture": (raw_gguf(SOUND_KEYS[1:]), "no key general.architecture"),
    "architecture not a string": (
        raw_gguf([key("general.architecture", U32, u32(1))]),
        "not a string",
    ),
    "architecture not UTF-8": (
        raw_gguf([key("general.architecture", STRING, text(b"\xff"))]),
        "not UTF-8",
    ),
    "architecture that names nothing": (
        raw_gguf([key("general.architecture", STRING, text("a\n\x1b[2J"))]),
        "names nothing",
    ),
    "architecture of a megabyte": (
        raw_gguf([key("general.architecture", STRING, text("a" * 1_000_000))]),
        "65536 bytes",
    ),
    "block count not an integer": (
        raw_gguf([SOUND_KEYS[0], key("llama.block_count", STRING, text("1"))]),
        "not an integer",
    ),
    "block count negative": (
        raw_gguf([SOUND_KEYS[0], key("llama.block_count", GGUFValueType.INT32, u32(2**32 - 1))]),
        "block_count is -1",
    ),
    "block count absurd": (
        raw_gguf([SOUND_KEYS[0], key("llama.block_count", GGUFValueType.UINT64, u64(HUGE))]),
        "block_count is 18446744073709551615",
    ),
    "no tensors": (raw_gguf(tensors=()), "layer 0 has no tensors"),
    "split number absurd": (
        with_key(key("split.count", GGUFValueType.UINT64, u64(HUGE))),
        "foreign",
    ),
}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hostile.gguf"


def test_the_file_that_the_hostile_ones_are_made_from_is_sound(path):
    path.write_bytes(raw_gguf())

    assert pin([path]).recipe_fields == {
        "weight_quantization": "F32:1",
        "architecture_adapter": "llama",
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_by_name_with_what_was_found_in_little_memory(path, name):
    data, complaint = HOSTILE[name]
    path.write_bytes(data)
    pin_once_to_load_modules(path)

    tracemalloc.start()
    try:
        with pytest.raises(PinError, match=complaint) as refusal:
            pin([path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert str(path) in str(refusal.value)
    assert len(str(refusal.value)) < 1000
    assert str(refusal.value).isprintable()
    assert peak < 4_000_000


def pin_once_to_load_modules(path):
    with pytest.raises(PinError):
        pin([path])


def test_a_name_from_the_file_cannot_write_to_the_terminal(path):
    path.write_bytes(with_key(key("\x1b]0;owned\7" * 40, 13, b"")))

    with pytest.raises(PinError) as refusal:
        pin([path])

    assert str(refusal.value).isprintable()


def test_cut_anywhere_short_the_file_is_refused(path):
    data = raw_gguf(data=bytes(16))

    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(PinError, match=r"hostile\.gguf"):
            pin([path])


def test_a_file_that_shrinks_while_it_is_hashed_is_refused(tmp_path):
    (model,) = write_model(tmp_path / "model.gguf", layers=40)
    assert model.stat().st_size > 1 << 20

    with pytest.raises(PinError, match="shrank"):
        pin([model], progress=lambda done, total: os.truncate(model, 1000))


def test_paths_that_are_no_files_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe", tmp_path / ("x" * 300)):
        with pytest.raises(PinError, match=str(path)):
            pin([path])
    with pytest.raises(PinError, match="no file given"):
        pin([])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 2000), st.sampled_from([0, 1, 9, 0x7F, 0x80, 0xFF])),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_is_altered_pinning_and_cutting_succeed_or_refuse(tmp_path, changes):
    source = tmp_path / "source.gguf"
    if not source.exists():
        write_model(source, tokenizer=False)
    data = bytearray(source.read_bytes())
    for at, value in changes:
        data[at] = value
    altered = tmp_path / "altered.gguf"
    altered.write_bytes(data)

    for attempt in (
        lambda: pin([altered]),
        lambda: cut([altered], layers=(0, 1), destination=tmp_path / "cut.gguf", overwrite=True),
    ):
        try:
            made = attempt()
        except PinError as refusal:
            said = str(refusal)
        else:
            said = f"altered.gguf has {made.artifact.layer_count} layers"
        assert "altered.gguf" in said
