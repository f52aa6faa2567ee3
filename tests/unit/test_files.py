"""Files read and replaced whole: no more than was meant, new content or old, and nothing beside it."""

import errno
import os
import stat
from pathlib import Path

import pytest

from meshnet_node.files import read_file, replace_file


def test_a_file_is_made_and_replaced(tmp_path):
    path = tmp_path / "kept"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_no_more_than_the_mode_asked_for(tmp_path):
    path = tmp_path / "kept"
    replace_file(path, b"", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    replace_file(path, b"")
    assert stat.S_IMODE(path.stat().st_mode) & ~0o644 == 0


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_whatever_fails_the_old_content_stays_and_nothing_else(tmp_path, monkeypatch, failing):
    path = tmp_path / "kept"
    replace_file(path, b"old")

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unfinished_file_of_another_process_is_not_in_the_way(tmp_path):
    (tmp_path / ".kept.part").mkdir()
    replace_file(tmp_path / "kept", b"new")
    assert (tmp_path / "kept").read_bytes() == b"new"


def test_a_file_of_just_so_many_bytes_is_read_and_one_more_is_too_many(tmp_path):
    path = tmp_path / "kept"
    path.write_bytes(b"x" * 8)
    assert read_file(path, "thing", most_bytes=8) == b"x" * 8
    with pytest.raises(OSError, match="larger than 7 bytes: no thing") as refused:
        read_file(path, "thing", most_bytes=7)
    assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(path))


def test_a_file_without_end_is_refused_and_not_read_for_ever():
    with pytest.raises(OSError, match="larger than 1,000 bytes"):
        read_file(Path("/dev/zero"), "thing", most_bytes=1_000)
