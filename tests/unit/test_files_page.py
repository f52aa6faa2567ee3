"""The page about variables and files: all that the code reads and writes, and nothing else."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from cyclopts import Parameter

from meshnet_cli import options
from meshnet_node import targets
from meshnet_node.targets import TargetNotLocked, read_locked_target

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "files.md").read_text()
TREES = [
    ast.parse(path.read_text())
    for folder in ("services", "events")
    for path in (ROOT / folder).rglob("*.py")
]
NODES = [node for tree in TREES for node in ast.walk(tree)]
BASES = {
    "user_config_path": "~/.config",
    "user_cache_path": "~/.cache",
    "user_data_path": "~/.local/share",
}


def rows(heading):
    """The first two cells of each row under a heading."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+?) \|", part, re.MULTILINE))


def test_each_variable_that_is_read_is_on_the_page_and_no_other():
    read = {
        node.value
        for node in NODES
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"MESHNET_\w+", node.value)
    }
    assert len(read) > 10
    assert set(rows("Variables")) == read


def by_variable():
    """Each variable that stands for a shared option, and how that is spelled."""
    groups = [kind for kind in vars(options).values() if dataclasses.is_dataclass(kind)]
    hints = [(name, hint) for kind in groups if isinstance(kind, type)
             for name, hint in get_type_hints(kind, include_extras=True).items()]  # fmt: skip
    for name, hint in [("dir", options.NodeDir), *hints]:
        for parameter in get_args(hint)[1:]:
            for variable in parameter.env_var if isinstance(parameter, Parameter) else ():
                spelled = parameter.name or (f"--{name.replace('_', '-')}",)
                yield variable, next(one for one in spelled if one.startswith("--"))


def test_each_variable_is_said_to_stand_for_its_option():
    told = rows("Variables")
    pairs = dict(by_variable())
    assert told.keys() - pairs.keys() == {"MESHNET_DEBUG"}
    for variable, option in pairs.items():
        assert told[variable].startswith(f"`{option}`"), variable


def path_of(node):
    """The path that an expression spells below a folder of the user's; None where it spells none."""
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            above = path_of(left)
            part = right.id.upper() if isinstance(right, ast.Name) else "…"
            part = str(right.value) if isinstance(right, ast.Constant) else part
            return above and f"{above}/{part}"
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="platformdirs"), attr=folder),
            args=[ast.Constant(value=name)],
        ):
            return f"{BASES[folder]}/{name}"
    return None


def kept():
    """Each such path in the code, whole."""
    parts = {id(node.left) for node in NODES if isinstance(node, ast.BinOp)}
    return {path for node in NODES if id(node) not in parts and (path := path_of(node))}


def test_each_path_in_the_users_folders_is_on_the_page_and_no_other():
    assert len(kept()) == 5
    assert set(rows("Files of the user")) == kept()


def test_each_temporary_folder_is_on_the_page_and_no_other():
    made = {
        node.value.value
        for node in NODES
        if isinstance(node, ast.keyword)
        and node.arg == "prefix"
        and isinstance(node.value, ast.Constant)
        and str(node.value.value).startswith("meshnet-")
    }
    assert made
    assert set(rows("Temporary folders")) == made


def test_each_target_of_the_package_is_on_the_page_with_whether_it_is_locked():
    told = rows("Locked targets")
    shipped = {path.stem: path for path in targets._SHIPPED.glob("*.json")}
    assert told.keys() == shipped.keys()
    for name, path in shipped.items():
        if told[name].startswith("locked"):
            assert read_locked_target(path).facts.name == name
        else:
            with pytest.raises(TargetNotLocked):
                read_locked_target(path)
