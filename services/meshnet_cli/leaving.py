"""How a process that stays up ends: when it is told to, and in bounded time, whatever a backend does.

A thread cannot be ended from outside, and Python waits for every thread before it exits. So what a
backend does not come back from is left behind, never closed under it, and the process is ended at once:
with the exit code that it would have had, and all that it said written.

    with closing_in_time() as stack:
        shard = stack.enter_context(…)
        …
        leave_open(stack)       # a call is still at work in there

    end(code)                   # the last thing that the process does

What starts processes and makes folders of its own runs under `run_until_told`, which ends and removes
them whichever signal it is that stops it. A command that leaves nothing behind may die of it.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")
CLOSE_TIMEOUT_S = 10.0
_left: list[ExitStack] = []
"""Stacks that must never be closed. Held here, because one that is collected closes what it holds."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """What tells a process to stop: Ctrl-C, SIGTERM, and SIGHUP as of a terminal that is closed.

    Under `nohup` SIGHUP is ignored, and stays so.
    """
    is_meant = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if is_meant else ()))


class ToldToStop(Exception):
    """A signal told the process to stop, and what it had started has ended. `code` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


def run_until_told(work: Callable[[*_Args], Awaitable[_T]], *arguments: *_Args) -> _T:
    """Do asynchronous `work`. A signal that tells to stop cancels it; then raise `ToldToStop`.

    A second one has its usual effect: whoever sends it does not want to wait.
    """
    import anyio

    async def run() -> _T:
        told: list[int] = []
        done: list[_T] = []
        async with anyio.create_task_group() as tasks:

            async def listen(*, task_status: "TaskStatus[None]") -> None:
                with anyio.open_signal_receiver(*stop_signals()) as signals:
                    task_status.started()
                    told.append(await anext(aiter(signals)))
                tasks.cancel_scope.cancel()

            await tasks.start(listen)
            done.append(await work(*arguments))
            tasks.cancel_scope.cancel()
        if told:
            raise ToldToStop(told[0])
        return done[0]

    return anyio.run(run)


@contextmanager
def closing_in_time() -> Iterator[ExitStack]:
    """What is entered into the stack is closed at the end; after `CLOSE_TIMEOUT_S` it is left open."""
    import anyio

    stack = ExitStack()
    try:
        yield stack
    finally:
        _left.append(stack)  # first, so that Ctrl-C during the wait leaves it open too
        if anyio.run(_is_closed, stack):
            _left.remove(stack)
        else:
            from meshnet_cli.output import note

            note(
                f"the backend did not give its layers back in {CLOSE_TIMEOUT_S:g} s; ending without it"
            )


async def _is_closed(stack: ExitStack) -> bool:
    """Close it in a thread, for as long as there is time."""
    import anyio.to_thread

    with anyio.move_on_after(CLOSE_TIMEOUT_S):
        await anyio.to_thread.run_sync(stack.close, abandon_on_cancel=True)
        return True
    return False


def leave_open(stack: ExitStack) -> None:
    """Never close what was entered into `stack`."""
    _left.append(stack.pop_all())


def end(code: int) -> NoReturn:
    """End the process with `code`, waiting for no thread where something was left open."""
    if _left:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # nobody reads it any more
                stream.flush()
        os._exit(code)
    sys.exit(code)
