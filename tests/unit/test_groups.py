"""What ended a task group is told, and not the group."""

from meshnet_bus.groups import sole


def raised_from(error, cause):
    error.__cause__ = cause
    return error


def test_one_that_went_wrong_is_what_is_told_however_deep_it_lies():
    fault = ValueError("deep")
    assert sole(BaseExceptionGroup("", [BaseExceptionGroup("", [fault])])) is fault


def test_what_caused_the_others_is_told():
    cause = ValueError("first")
    group = BaseExceptionGroup("", [raised_from(KeyError("then"), cause), cause])
    assert sole(group) is cause


def test_two_that_have_nothing_to_do_with_one_another_stay_a_group():
    group = BaseExceptionGroup("", [ValueError(), KeyError()])
    assert sole(group) is group


def test_what_was_raised_from_itself_is_told_and_so_is_one_that_equals_its_cause():
    fault = ValueError("again")
    assert sole(BaseExceptionGroup("", [raised_from(fault, fault)])) is fault

    class Equal(Exception):
        __hash__ = None

        def __eq__(self, other):
            return isinstance(other, Equal)

    late = raised_from(Equal(), Equal())
    assert sole(BaseExceptionGroup("", [late])) is late
