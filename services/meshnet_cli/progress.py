"""For whoever waits, on stderr: a bar or a word, only on a terminal, and only after a while."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Meter = Callable[[int, int], None]
"""Called with (done, in all), as often as one likes."""

_PATIENCE_S = 1.0
_LONG_S = 4.0
_EVERY_S = 0.1


@contextmanager
def progress(what: str, unit: Literal["records", "bytes", "tokens"]) -> Iterator[Meter]:
    """Give a meter that draws a bar with rate and time remaining, where someone can see it."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    bar = _Bar(what, unit)
    try:
        yield bar
    finally:
        bar.stop()


@contextmanager
def patience(text: str) -> Iterator[Callable[[], None]]:
    """Say `text` if what is waited for takes long; gives what is to be called once it has come."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    timer = threading.Timer(_LONG_S, sys.stderr.write, [f"{text}\n"])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _ignore(_done: int, _total: int) -> None:
    pass


class _Bar:
    """rich's progress bar, not made before it is worth it."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._started = time.monotonic()
        self._next = self._started + _PATIENCE_S
        self._stop: Callable[[], None] | None = None
        self._update: Meter | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        if self._update is None:
            self._begin()
        if self._update is not None:
            self._update(done, total)

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(f"{task.speed or 0:,.0f}/s")

        counts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), Rate())
        if self._unit == "bytes":
            counts = (DownloadColumn(), TransferSpeedColumn())
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *counts,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task(self._what, total=None)
        bar.start()
        self._stop = bar.stop
        self._update = lambda done, total: bar.update(task, completed=done, total=total)

    def stop(self) -> None:
        """Take the bar away."""
        if self._stop is not None:
            self._stop()
