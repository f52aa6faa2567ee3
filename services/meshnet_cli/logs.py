"""What a process tells of its work: a line on stderr for each thing, with the time in UTC."""

import logging
import os
import time

from meshnet_cli.look import one_line, printable

_LINE = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def log_to_stderr() -> None:
    """Show what our own packages log, from `info` on; of all others only warnings."""
    _handle()
    for name in ("meshnet_bus", "meshnet_node", "meshnet_tracker"):
        logging.getLogger(name).setLevel(logging.INFO)
    show_backend_faults()


def show_backend_faults() -> None:
    """Show the traceback of what a backend raises, where `MESHNET_DEBUG` asks for such."""
    if os.environ.get("MESHNET_DEBUG"):
        _handle()
        for name in ("meshnet_node.doctor", "meshnet_node.probe"):
            logging.getLogger(name).setLevel(logging.DEBUG)


class _Formatter(logging.Formatter):
    """A line for each thing: what others wrote of it makes no second one and steers no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))  # a traceback has lines of its own

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it so
        return one_line(super().formatMessage(record))


def _handle() -> None:
    formatter = _Formatter(_LINE, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
