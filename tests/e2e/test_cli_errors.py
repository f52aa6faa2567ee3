"""What a person is told when several things went wrong at once."""

from meshnet_bus.asker import QueryRefused
from meshnet_bus.outbox import OutboxStopped
from meshnet_bus.place import KeyInUse
from meshnet_cli.errors import FAILED, UNREACHABLE, explain


def raised_from(error, cause):
    error.__cause__ = cause
    return error


def test_of_a_group_the_cause_is_told_and_not_what_it_brought_about():
    cause = KeyInUse("another process has this key")
    stopped = [raised_from(OutboxStopped(f"nothing is sent ({n})"), cause) for n in range(2)]
    group = BaseExceptionGroup("", [stopped[0], BaseExceptionGroup("", [cause, stopped[1]])])
    assert explain(group) == ("another process has this key", "", FAILED)
    assert explain(cause) == explain(BaseExceptionGroup("", [BaseExceptionGroup("", [cause])]))


def test_errors_that_have_nothing_to_do_with_each_other_are_told_as_nobodys():
    group = BaseExceptionGroup("two", [KeyInUse("one"), OutboxStopped("other")])
    assert "of meshnet's own" in explain(group)[0]


def test_a_trackers_refusal_is_no_fault_of_ours():
    message, advice, code = explain(QueryRefused("unavailable", "it is catching up"))
    assert message == "unavailable: it is catching up"
    assert "ask again" in advice
    assert code == UNREACHABLE
