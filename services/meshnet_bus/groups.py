"""What ended a task group: the group itself is no concern of whoever called."""


def leaves(error: BaseException) -> list[BaseException]:
    """Every exception in a group, however deep, in order; an exception alone is its own leaf."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in leaves(part)]


def sole(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong, when one thing did and at most caused the others; otherwise the group."""
    found = leaves(group)
    causes = [
        error
        for error in found
        if not any(error.__cause__ is other is not error for other in found)
    ]
    return causes[0] if len(causes) == 1 else group
