"""How a process that stays up ends: when it is told to, and in bounded time, whatever a backend does.

A thread cannot be ended from outside, and Python waits for every thread before it exits. So what a
backend does not come back from is left behind, never closed under it, and the process is ended at once:
with the exit code that it would have had, and all that it said written.

    with closing_in_time() as stack:
        shard = stack.enter_context(…)
        …
        leave_open(stack)       # a call is still at work in there

    end(code)                   # the last thing that the process does
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NoReturn

CLOSE_TIMEOUT_S = 10.0
_left: list[ExitStack] = []
"""Stacks that must never be closed. Held here, because one that is collected closes what it holds."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """What tells a process to stop: Ctrl-C, SIGTERM, and SIGHUP as of a terminal that is closed.

    Under `nohup` SIGHUP is ignored, and stays so.
    """
    is_meant = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if is_meant else ()))


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
