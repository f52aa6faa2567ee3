"""What all tests share: asking for parts that need not be there."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# read when numpy is first imported: tests share the machine, and two threads that wait for each other
# are slower than one
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# how long an example takes is the machine's matter, and it is shared; another profile is chosen with
# --hypothesis-profile
settings.register_profile("meshnet", parent=settings.default, deadline=None)
settings.load_profile("meshnet")


@pytest.fixture(scope="session")
def require():
    """`require("gguf")`, `require("nats-server")`: skip without that module or program.

    With MESHNET_REQUIRE_ALL=1, as in a full run, its absence is a failure instead: a suite that
    skips what it was meant to show would be green for nothing.
    """
    return _check_present


def _check_present(name: str) -> None:
    """Skip, or fail, unless `name` is a module or a program that is there."""
    beside = Path(sys.executable).parent / name
    if shutil.which(name) or beside.is_file():
        return
    if name.replace(".", "").isidentifier() and importlib.util.find_spec(name):
        return
    if os.environ.get("MESHNET_REQUIRE_ALL") == "1":
        pytest.fail(f"{name} is not installed, and MESHNET_REQUIRE_ALL=1 asks for everything")
    pytest.skip(f"{name} is not installed")
