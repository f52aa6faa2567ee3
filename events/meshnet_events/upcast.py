"""Older versions of facts, brought forward.

A later version of a fact is a new type, and what was written stays readable for good. `RETIRED`
names every type that this release still reads but no longer writes; `STEPS` brings each one version
forward, as a pure function of the old fact. Today every type is at its first version, so both are
empty; tests/unit/test_upcast.py walks a chain of two steps through this same code, and the golden
files under tests/data/golden hold every version ever written.
"""

from collections.abc import Callable, Mapping
from typing import Any

from meshnet_events.facts import FACTS, Fact

Step = Callable[[Any], Fact]

RETIRED: dict[str, type[Fact]] = {}
STEPS: dict[type[Fact], Step] = {}
READABLE: dict[str, type[Fact]] = {**FACTS, **RETIRED}


def upcast(fact: Fact, steps: Mapping[type[Fact], Step] = STEPS) -> Fact:
    """Bring `fact` forward to the version this release writes."""
    while step := steps.get(type(fact)):
        fact = step(fact)
    return fact
