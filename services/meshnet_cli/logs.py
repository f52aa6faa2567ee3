"""What a process tells of its work: a line on stderr for each thing, with the time in UTC."""

import logging
import os
import time

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


def _handle() -> None:
    formatter = logging.Formatter(_LINE, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
