"""The kits themselves: a test that was cut short must not pass for one that ran."""

import ast
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bus_kit import alongside

TESTS = Path(__file__).parents[1]


async def test_a_body_that_is_cancelled_with_the_tasks_beside_it_fails():
    async def cut(scope):
        scope.cancel()

    async def cancelled():
        async with alongside() as tasks:
            tasks.start_soon(cut, tasks.cancel_scope)
            await anyio.sleep_forever()

    with pytest.raises(AssertionError, match="not all of it has run"):
        await cancelled()


async def test_tasks_beside_a_body_end_when_it_has_ended():
    ended = []

    async def task():
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async with alongside() as tasks:
        tasks.start_soon(task)
        await anyio.lowlevel.checkpoint()
    assert ended == [True]


def cancelled_by(statement):
    """The name of the group whose scope a statement cancels, if it is such a statement."""
    match statement:
        case ast.Expr(
            ast.Call(
                ast.Attribute(ast.Attribute(ast.Name(group), "cancel_scope"), "cancel"),
            )
        ):
            return group
    return None


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.name)
def test_nothing_follows_where_a_body_cancels_the_group_that_it_is_in(path):
    """What followed would be cut at its first await, and the group would swallow that."""
    found = [
        block[number + 1].lineno
        for node in ast.walk(ast.parse(path.read_text()))
        for block in (getattr(node, "body", ()), getattr(node, "orelse", ()))
        if isinstance(block, list)
        for number, statement in enumerate(block[:-1])
        if cancelled_by(statement) is not None
    ]
    assert found == [], f"{path}: lines {found}"
