"""The page of outcomes, the tables in the rules' docstrings and the codes in the code are one."""

import ast
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

from meshnet_events import facts, gate, reasons
from meshnet_events.admission import CAPABILITY_REASONS
from meshnet_tracker.registry import fold, rules
from meshnet_tracker.registry.rules import evidence

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "outcomes.md").read_text()
MODULES = [
    fold,
    *(
        import_module(f"{rules.__name__}.{module.name}")
        for module in pkgutil.iter_modules(rules.__path__)
    ),
]
# a report that is part of the event is always there
CAPABILITY = {f"{reasons.CAPABILITY}{reason}" for reason in CAPABILITY_REASONS} - {
    "capability:no-report"
}
KNOWN = set(reasons.MEANING) | CAPABILITY | {"applied", "noop"}
CODE = r"[a-z]+(?:[:-][a-z]+)*"
CONSTANTS = {
    name: code
    for name, code in vars(reasons).items()
    if isinstance(code, str) and code in reasons.MEANING and name.isupper()
}


def tables(text):
    """The rows of every table that has a column `outcome` or `rejected`, as dicts by heading."""
    heading = None
    for line in text.splitlines():
        if not line.startswith("|"):
            heading = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if heading is None:
            heading = cells
        elif not set(line) <= set("|-"):
            yield dict(zip(heading, cells, strict=True))


def codes_in(cell):
    return set(re.findall(r"`([^`]+)`", cell))


PAGE_CODES = {code for row in tables(PAGE) for code in codes_in(row["outcome"])}


def test_every_outcome_on_the_page_is_one_that_the_contract_knows():
    assert PAGE_CODES <= KNOWN


def test_the_page_has_every_fact():
    names = {fact.NAME for fact in facts.FACTS.values()}
    assert {name for name in names if f"`{name}`" in PAGE} == names


def test_every_code_of_the_gate_is_on_the_page():
    steps = set(re.findall(r"[a-z]+(?:-[a-z]+)+|oversize|replayed", gate.__doc__)) & set(KNOWN)
    assert steps
    assert steps <= PAGE_CODES


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_every_code_that_a_module_can_give_is_on_the_page(module):
    tree = ast.parse(Path(module.__file__).read_text())
    named = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    given = {CONSTANTS[name] for name in named & set(CONSTANTS)}
    if "CAPABILITY" in named:
        given |= CAPABILITY
    assert given <= PAGE_CODES, "add it to docs/reference/outcomes.md"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_every_code_in_a_docstrings_table_is_on_the_page(module):
    for row in tables(module.__doc__ or ""):
        for heading in ("rejected", "outcome"):
            # what is not spelled like a code is a member or a type
            codes = {one for one in codes_in(row.get(heading, "")) if re.fullmatch(CODE, one)}
            assert codes <= KNOWN, "no such code: misspelt?"
            assert codes <= PAGE_CODES


def test_the_checks_of_evidence_come_in_the_same_order_on_the_page_and_in_the_code():
    def in_order(text):
        return list(dict.fromkeys(re.findall(r"evidence:[a-z-]+", text)))

    stated = in_order(PAGE[PAGE.index("## `forward.attested`") :])
    described = in_order(evidence.__doc__)
    assert described == [code for code in stated if not code.endswith(("-hosts", "-groups"))]
