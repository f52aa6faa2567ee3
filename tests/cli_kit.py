"""The real `meshnet`, run as people and scripts run it: a process, its output, its exit code."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from meshnet_events.facts import Fingerprint, recipe_key

# a recipe that a tracker made up in a test may answer with
FINGERPRINT = Fingerprint(
    catalogue_version="1",
    model_artifact_digest="1" * 64,
    recipe_id="r",
    recipe_version="1",
    runtime_recipe_digest="2" * 64,
)
KEY = recipe_key(FINGERPRINT.model_artifact_digest, FINGERPRINT.runtime_recipe_digest)

MESHNET = [sys.executable, "-m", "meshnet_cli"]
_SEED = re.compile("SU[A-Z2-7]{56}")
_TIMEOUT_S = 30


class Ran:
    """A run that has ended."""

    def __init__(self, arguments, code, out, err):
        self.arguments, self.code, self.out, self.err = arguments, code, out, err

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"meshnet {' '.join(self.arguments)} -> {self.code}\n{self.out}\n{self.err}"


class Cli:
    """Runs commands in one directory, with nothing of the user's own around them."""

    def __init__(self, home: Path, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.home, self.timeout_s = home, timeout_s
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MESHNET_")}
        inherited.pop("FORCE_COLOR", None)
        inherited.pop("PYTHONUNBUFFERED", None)  # what is not flushed must be seen not to come
        self.env = inherited | {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "COLUMNS": "80",
        }

    def __call__(self, *arguments, code=0, **env):
        """Run one command, which must end with `code` and show no seed and no traceback."""
        arguments = [str(argument) for argument in arguments]
        done = subprocess.run(
            [*MESHNET, *arguments],
            cwd=self.home,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
            check=False,
        )
        ran = Ran(arguments, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in ran.err, ran
        assert not _SEED.search(ran.out + ran.err), "a seed was printed"
        assert ran.code == code, ran
        return ran

    def start(self, *arguments):
        """Start a command that stays, its output going to files."""
        with (self.home / "up.out").open("w") as out, (self.home / "up.err").open("w") as err:
            return subprocess.Popen(
                [*MESHNET, *map(str, arguments)],
                cwd=self.home,
                env=self.env,
                stdout=out,
                stderr=err,
            )

    def up(self, *arguments):
        """`meshnet up`, started and up. Its JSON and the process."""
        process = self.start("up", "--dir", "realm", "-o", "ndjson", *arguments)
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while not (text := (self.home / "up.out").read_text()).endswith("\n"):
                assert process.poll() is None, (self.home / "up.err").read_text()
                assert time.monotonic() < deadline, "meshnet up did not come up"
                time.sleep(0.02)
            assert not _SEED.search(text), "a seed was printed"
            said = json.loads(text)
        except BaseException:
            end(process)
            raise
        self.env["MESHNET_PROFILE"] = said["profile"]
        return said, process


@contextmanager
def realm_up(home, *arguments):
    """The realm `lab`, up, and the command line that knows it."""
    cli = Cli(home)
    cli.said, process = cli.up("--realm", "lab", *arguments)
    try:
        yield cli
    finally:
        code = end(process)
    assert code == 0


def free_port():
    """A port of this machine that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(process, how=signal.SIGTERM):
    """Signal a process that we started; its exit code."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        return process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
