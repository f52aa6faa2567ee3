"""What a process that stays tells of its work: a line on stderr for each thing, with the time in UTC."""

import logging
import time

_LINE = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def log_to_stderr() -> None:
    """Show what our own packages log, from `info` on; of all others only warnings."""
    formatter = logging.Formatter(_LINE, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("meshnet_bus", "meshnet_node", "meshnet_tracker"):
        logging.getLogger(name).setLevel(logging.INFO)
