"""A whole artifact: one GGUF file, or every part of a split set, opened and checked together.

A set is `name-00001-of-00003.gguf` and so on. Its parts say who they are in their keys: `split.no`
(counts from 0, the names from 1), `split.count` and `split.tensors.count` (of the whole set). The
first part holds the model's keys; the others may repeat some, never contradict them.

Rules

- Every part is given, each once, in any order. All that is wrong is said at once, by file name.
- Names and keys must agree: a part that was renamed, or merged without clearing its `split.*` keys
  (a stale `split.count`), would otherwise pass for something that it is not.
- A file with no `split.count`, or with 0 (merged) or 1, is an artifact by itself.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from meshnet_node.pin.errors import PinError
from meshnet_node.pin.gguf_file import GgufFile, Tensor

_PART_NAME = re.compile(
    r"(?P<prefix>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL
)
_MAX_PARTS = 99_999
_LISTED = 8


def names_part(path: Path) -> bool:
    """Whether a file of this name would be taken for a part of a split set."""
    return _PART_NAME.fullmatch(path.name) is not None


def stem_of(path: Path) -> str:
    """The name of a model file without `.gguf` and without what marks a part."""
    part = _PART_NAME.fullmatch(path.name)
    return part["prefix"] if part else path.name.removesuffix(".gguf")


class Artifact(Struct, frozen=True):
    """The open files of one artifact, first part first. The first holds the model's keys."""

    files: tuple[GgufFile, ...]

    @property
    def head(self) -> GgufFile:
        """The file that holds the model's keys."""
        return self.files[0]

    def tensors(self) -> Iterator[tuple[GgufFile, Tensor]]:
        """Every tensor with the file it lies in, in file order."""
        return ((file, tensor) for file in self.files for tensor in file.tensors)

    @property
    def stem(self) -> str:
        """The file name without `.gguf` and without what marks a part."""
        return stem_of(self.head.path)


class _Part(Struct, frozen=True):
    """What one file says about the set that it is in, by its name and by its keys."""

    file: GgufFile
    prefix: str | None
    named_number: int | None
    named_count: int | None
    number: int | None
    count: int | None
    tensor_total: int | None

    @property
    def name(self) -> str:
        return self.file.path.name


@contextmanager
def open_artifact(paths: Sequence[Path]) -> Iterator[Artifact]:
    """Open one file or a whole set, closed again on leaving. Raises `PinError`."""
    if not paths:
        raise PinError("no file given: name a .gguf file, or every part of a split one")
    with ExitStack() as stack:
        files = [stack.enter_context(GgufFile(path)) for path in paths]
        yield Artifact(_ordered(files))


def _ordered(files: Sequence[GgufFile]) -> tuple[GgufFile, ...]:
    parts = [_part(file) for file in files]
    if len(parts) == 1 and (parts[0].count or 0) <= 1:
        _check_single(parts[0])
        return (parts[0].file,)
    if all((part.count or 0) <= 1 and (part.named_count or 1) == 1 for part in parts):
        raise PinError(
            f"{', '.join(part.name for part in parts[:_LISTED])}{_and_more(len(parts))}: each is a file"
            " by itself, no part of a split model; name one of them"
        )
    lead = next((part for part in parts if part.number == 0), parts[0])
    by_number: dict[int, _Part] = {}
    problems: list[str] = []
    for part in parts:
        problems += _disagreements(part, lead)
        if part.number is not None:
            twin = by_number.setdefault(part.number, part)
            if twin is not part:
                problems.append(f"{part.name} and {twin.name} both say split.no {part.number}")
    count = lead.count or 0
    problems += _missing(lead, count, by_number)
    ordered = tuple(by_number[number].file for number in sorted(by_number))
    if not problems:
        problems += _contents_disagree(ordered, lead.tensor_total)
    if problems:
        raise PinError(
            f"{lead.file.path}: not a whole split set: {'; '.join(problems[:_LISTED])}"
            f"{_and_more(len(problems))}. Give every part of one set, and no other file"
        )
    return ordered


def _part(file: GgufFile) -> _Part:
    name = _PART_NAME.fullmatch(file.path.name)
    return _Part(
        file,
        name["prefix"] if name else None,
        int(name["number"]) if name else None,
        int(name["count"]) if name else None,
        file.integer("split.no"),
        file.integer("split.count"),
        file.integer("split.tensors.count"),
    )


def _check_single(part: _Part) -> None:
    if (part.named_count or 1) != 1:
        raise PinError(
            f"{part.file.path}: its name says part {part.named_number} of {part.named_count}, but"
            " it has no split.count above 1; rename it if it is the whole model, and give every"
            " part if it is not"
        )
    if part.count == 1 and part.tensor_total not in {None, len(part.file.tensors)}:
        raise PinError(
            f"{part.file.path}: split.tensors.count is {part.tensor_total}, the file holds"
            f" {len(part.file.tensors)}; get the file again"
        )


def _disagreements(part: _Part, lead: _Part) -> Iterator[str]:
    if part.count is None or part.number is None:
        yield f"{part.name} is foreign: it has no split.no and split.count"
        return
    if part.prefix is None:
        yield (
            f"{part.name} says it is part {part.number + 1} of {part.count}, but is not named"
            f" NAME-{part.number + 1:05d}-of-{part.count:05d}.gguf: a stale split.count (merge it"
            " with a tool that clears the split.* keys), or a part that was renamed"
        )
        return
    if part.prefix != lead.prefix:
        yield f"{part.name} is foreign: {lead.name} belongs to another set"
    if part.count != lead.count or part.tensor_total != lead.tensor_total:
        yield (
            f"{part.name} is foreign: it says {part.tensor_total} tensors in {part.count} parts,"
            f" {lead.name} says {lead.tensor_total} in {lead.count}"
        )
    if part.named_count != part.count:
        yield (
            f"{part.name} has a stale split.count: {part.count}, where its name says"
            f" {part.named_count}"
        )
    if not 0 <= part.number < part.count:
        yield f"{part.name} is foreign: split.no {part.number} of {part.count} (it counts from 0)"
    if part.named_number != part.number + 1:
        yield (
            f"{part.name} has split.no {part.number} (from 0), where its name says part"
            f" {part.named_number} (from 1)"
        )


def _missing(lead: _Part, count: int, by_number: dict[int, _Part]) -> Iterator[str]:
    if lead.prefix is None or not 0 < count <= _MAX_PARTS:
        return  # said already, by name
    absent = [number for number in range(count) if number not in by_number]
    if absent:
        names = (
            f"{lead.prefix}-{number + 1:05d}-of-{count:05d}.gguf" for number in absent[:_LISTED]
        )
        yield f"missing {', '.join(names)}{_and_more(len(absent))}"


def _and_more(count: int) -> str:
    return f", and {count - _LISTED} more" if count > _LISTED else ""


def _contents_disagree(files: tuple[GgufFile, ...], tensor_total: int | None) -> Iterator[str]:
    seen: dict[str, str] = {}
    for file in files:
        for tensor in file.tensors:
            other = seen.setdefault(tensor.name, file.path.name)
            if other != file.path.name:
                yield f"{file.path.name} and {other} both hold tensor {tensor.name!a}"
    held = sum(len(file.tensors) for file in files)
    if held != tensor_total:
        yield f"split.tensors.count is {tensor_total}, the parts hold {held}"
    head = files[0]
    for file in files[1:]:
        for key, value in file.values.items():
            if key.startswith("split.") or key == "general.alignment":
                continue
            stated = head.values.get(key)
            if (
                stated is None
                or stated.type_id != value.type_id
                or not _same_bytes(
                    head, (stated.data_start, stated.end), file, (value.data_start, value.end)
                )
            ):
                yield f"{file.path.name} is foreign: its {key!a} is not that of {head.path.name}"


def _same_bytes(
    left: GgufFile, left_range: tuple[int, int], right: GgufFile, right_range: tuple[int, int]
) -> bool:
    if left_range[1] - left_range[0] != right_range[1] - right_range[0]:
        return False
    pairs = zip(left.read(*left_range), right.read(*right_range), strict=True)
    return all(ours == theirs for ours, theirs in pairs)
