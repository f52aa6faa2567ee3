"""The layout, the import contracts, the style, and that the architecture page is true."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(p) for p in CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
MODULES = [
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "_pb2" not in path.name
]


def run(*command):
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


def test_the_import_contracts_hold():
    script = "import importlinter.cli as cli, sys; sys.exit(cli.lint_imports())"
    checked = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert checked.returncode == 0, checked.stdout
    assert " 0 broken" in checked.stdout


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")])
def test_the_code_is_in_the_house_style(arguments):
    checked = run("ruff", *arguments, ".")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_the_types_are_right():
    checked = run("mypy")
    assert checked.returncode == 0, checked.stdout


def test_every_package_is_on_the_architecture_page_and_every_one_there_exists():
    told = set(re.findall(r"^\| `(meshnet_\w+)` \|", PAGE, re.MULTILINE))
    assert told == {package.name for package in PACKAGES}


def test_every_module_that_the_architecture_page_names_exists():
    here = {".".join(m.relative_to(ROOT).with_suffix("").parts[1:]) for m in MODULES}
    packages = {name.removesuffix(".__init__") for name in here}
    for name in re.findall(r"`(meshnet_[\w.]+)`", PAGE):
        assert name in packages, name
    for path in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert any(str(module).endswith(path) for module in MODULES), path


FEW = 3
"""So many modules are seen at a glance."""


def _listed_and_there(package):
    """The modules that a package's docstring lists, and those that are there and not private."""
    doc = ast.get_docstring(ast.parse(package.read_text())) or ""
    told = set(re.findall(r"^(?: {4})?(\w+)  +\S", doc, re.MULTILINE))
    beside = (m for m in MODULES if m.parent == package.parent and m.stem != "__init__")
    below = (
        m.parent for m in MODULES if m.parent.parent == package.parent and m.stem == "__init__"
    )
    return told, {m.stem for m in (*beside, *below) if m.stem[0] != "_" or m.stem == "__main__"}


LISTED_ELSEWHERE = {
    "commands": "each module is named for the command it is",
    "rules": "each is named for the facts whose rules it has",
    "backends": "the protocol is the package itself, the reference one backend of it",
    "targets": "a target is a file",
}


@pytest.mark.parametrize(
    "package", [m for m in MODULES if m.stem == "__init__"], ids=lambda m: m.parent.name
)
def test_a_package_lists_each_of_its_modules_and_no_other(package):
    told, there = _listed_and_there(package)
    if told or (len(there) > FEW and package.parent.name not in LISTED_ELSEWHERE):
        assert told == there


def test_links_in_the_documents_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_a_module_says_what_it_owns_and_stays_readable(module):
    text = module.read_text()
    assert text.lstrip().startswith(('"""', 'r"""')), "it opens without saying what it owns"
    assert len(text.splitlines()) <= 460, "split it by reason to change"


def test_the_command_line_tasks_are_the_ones_the_documents_name():
    tasks = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        named = set(re.findall(r"\bmake ([a-z]+)", page.read_text()))
        assert named <= tasks, named - tasks
    assert {"demo", "test", "help"} <= tasks


def test_every_dependency_is_pinned_and_explained():
    project = CONFIG["project"]
    extras = [d for group in project["optional-dependencies"].values() for d in group]
    page = (ROOT / "docs" / "explanation" / "dependencies.md").read_text().lower()
    for requirement in [*project["dependencies"], *extras]:
        if requirement.startswith("meshnet-registry["):
            continue
        name, pinned, _ = requirement.partition("==")
        assert pinned, f"{requirement} is not pinned"
        assert name.lower() in page or name.startswith("types-"), f"{name} is not explained"
