"""What a process tells of its work, whoever wrote a part of it."""

import subprocess
import sys

TOLD = """
import logging
from meshnet_cli.logs import log_to_stderr

log_to_stderr()
log = logging.getLogger("meshnet_node")
hostile = "a\\x1b]0;pwned\\x07\\r\\n2026-01-01T00:00:00Z INFO meshnet_node: all is well\\u202e"
log.info("no tracker says: %s", hostile)
try:
    raise ValueError(hostile)
except ValueError:
    log.exception("it failed")
"""


def test_what_others_wrote_makes_no_line_of_ours_and_steers_no_terminal():
    told = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    first, second, *traceback = told.stderr.splitlines()
    assert "INFO meshnet_node: no tracker says: a" in first
    assert "all is well" in first
    assert second.endswith("ERROR meshnet_node: it failed")
    assert traceback[0] == "Traceback (most recent call last):"
    for steering in "\x1b\x07\r\u202e":
        assert steering not in told.stderr
