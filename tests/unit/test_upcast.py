"""Old versions come forward: two steps, through the same `upcast` that reads the log."""

from typing import Literal

from meshnet_events.facts import FACTS, Fact
from meshnet_events.upcast import READABLE, RETIRED, STEPS, Step, upcast


class LampLitV1(Fact):
    """First version: a colour by number."""

    NAME = "lamp.lit"
    colour: int


class LampLitV2(Fact):
    """Second version: a colour by name."""

    NAME = "lamp.lit"
    colour: Literal["red", "green"]


class LampLitV3(Fact):
    """Third version: also where."""

    NAME = "lamp.lit"
    colour: Literal["red", "green"]
    room: str


def name_the_colour(old: LampLitV1) -> LampLitV2:
    return LampLitV2(colour="green" if old.colour == 1 else "red")


def place_in_the_hall(old: LampLitV2) -> LampLitV3:
    return LampLitV3(colour=old.colour, room="hall")


LAMPS: dict[type[Fact], Step] = {LampLitV1: name_the_colour, LampLitV2: place_in_the_hall}


def test_the_oldest_version_takes_every_step():
    assert upcast(LampLitV1(colour=1), LAMPS) == LampLitV3(colour="green", room="hall")


def test_a_version_in_between_takes_the_steps_that_remain():
    assert upcast(LampLitV2(colour="red"), LAMPS) == LampLitV3(colour="red", room="hall")


def test_the_newest_version_stays_the_very_same_object():
    newest = LampLitV3(colour="red", room="attic")
    assert upcast(newest, LAMPS) is newest


def test_a_fact_of_another_kind_is_left_alone():
    newest = LampLitV3(colour="red", room="attic")
    assert upcast(newest, {LampLitV1: name_the_colour}) is newest


def test_every_retired_type_has_a_step_and_ends_at_a_version_that_is_written():
    assert READABLE == {**FACTS, **RETIRED}
    assert not set(FACTS) & set(RETIRED)
    assert set(STEPS) == set(RETIRED.values())
    assert not set(STEPS) & set(FACTS.values())
