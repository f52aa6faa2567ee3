"""Histories from a file: what is read, and what is refused with the line named."""

import json
from base64 import b64encode

import pytest

from meshnet_auditor.source import MAX_LINE, Header, RecordFile, SourceError, write_records
from meshnet_events.record import Record

RECORD = Record(1, 1_790_000_001_000_000_000, "mesh.lab.evt.UA", b"\x00\xff body")


def file(tmp_path, *lines):
    path = tmp_path / "history.ndjson"
    path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def line(**changes):
    members = {"sequence": 1, "time_ns": 5, "subject": "mesh.lab.evt.UA", "body": "e30="} | changes
    return json.dumps({k: v for k, v in members.items() if v is not None}) + "\n"


def test_what_is_written_is_read_back(tmp_path):
    records = [RECORD, Record(2, 7, "mesh.lab.evt.UB", b"")]
    header = Header("MESH_lab", "2026-09-21T14:13:20Z")
    source = RecordFile(file(tmp_path, *write_records(records, header)))
    assert source.header == header
    assert list(source) == records
    assert list(source) == records
    assert source.realm == "lab"


def test_without_a_first_line_about_the_stream_it_has_no_header(tmp_path):
    source = RecordFile(file(tmp_path, *write_records([RECORD])))
    assert source.header is None
    assert list(source) == [RECORD]


def test_empty_lines_are_passed_over(tmp_path):
    header = b'{"stream":"MESH_lab","created":"2026-09-21T14:13:20Z"}\n'
    later = RecordFile(file(tmp_path, "\n", header, line()))
    assert (later.header.stream, len(list(later))) == ("MESH_lab", 1)
    assert len(list(RecordFile(file(tmp_path, line(), "\n", line(sequence=2), "\n")))) == 2


@pytest.mark.parametrize(
    "bad",
    [
        "{\n",
        "[]\n",
        b"\xff\xfe\n",
        line(body="not base64!"),
        line(body="e30"),
        line(sequence=0),
        line(sequence="1"),
        line(sequence=1.0),
        line(time_ns=-1),
        line(time_ns=2**63),
        line(subject=None),
        line(more=1),
        line(sequence=True),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, bad):
    path = file(tmp_path, line(), bad)
    with pytest.raises(SourceError, match="line 2"):
        list(RecordFile(path))


def test_a_line_without_end_costs_no_memory(tmp_path):
    path = file(tmp_path, line(), b'{"sequence":' + b"1" * MAX_LINE)
    with pytest.raises(SourceError, match="line 2: longer than"):
        list(RecordFile(path))


def test_a_record_of_the_largest_body_fits_in_a_line(tmp_path):
    body = b64encode(b"x" * 65_536).decode()
    assert len(next(iter(RecordFile(file(tmp_path, line(body=body))))).body) == 65_536


@pytest.mark.parametrize("subject", ["", "mesh.lab", "other.lab.evt.UA", "mesh.LAB.evt.UA"])
def test_a_first_record_of_no_realm_is_refused(tmp_path, subject):
    with pytest.raises(SourceError, match=r"mesh\.<realm>\.evt"):
        _ = RecordFile(file(tmp_path, line(subject=subject))).realm


def test_an_empty_and_a_missing_file_say_so(tmp_path):
    with pytest.raises(SourceError, match="is empty"):
        RecordFile(file(tmp_path))
    with pytest.raises(SourceError, match="cannot read"):
        RecordFile(tmp_path / "nowhere.ndjson")
