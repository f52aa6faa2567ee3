"""The page that teaches how to run a node: every command on it works, in the order it has there."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli_kit import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "run-a-node.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
ENDPOINT = re.compile(r"(?<=grpc://127\.0\.0\.1:)\d+")


class Shell:
    """One shell's lines, one after another; what is left in the background is ended at the end."""

    def __init__(self, folder):
        self.folder = folder
        ours = re.compile("MESHNET|^XDG_")
        kept = {name: value for name, value in os.environ.items() if not ours.search(name)}
        self.env = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "COLUMNS": "500",  # nothing is broken, wherever the page breaks it
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.background = []
        self.codes = []

    def run(self, line):
        if jobs := re.fullmatch(r"kill ((?:%\d ?)+); wait \1", line):
            self.stop([int(number) for number in re.findall(r"\d", jobs[1])])
            return ""
        if line.startswith("unset "):
            del self.env[line.removeprefix("unset ")]
            return ""
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.env[name] = self.run(f"echo {value}").strip()
            return ""
        if line.endswith("&"):
            self.start(line.removesuffix("&"))
            return ""
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def start(self, line):
        """Start it as a shell does, without waiting: that is for the page's next line to do."""
        self.background.append(
            subprocess.Popen(["/bin/sh", "-c", f"exec {line}"], cwd=self.folder, env=self.env)
        )

    def stop(self, jobs):
        """End some of them as a shell does, and keep their exit codes."""
        for number in jobs:
            self.background[number - 1].send_signal(signal.SIGTERM)
        self.codes += [self.background[number - 1].wait(30) for number in jobs]

    def end(self):
        """End what still runs, the last first."""
        for process in reversed(self.background):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


@pytest.mark.slow
def test_every_command_works_in_its_order(tmp_path, require):
    for part in ("nats-server", "numpy", "gguf", "sentencepiece"):
        require(part)
    shell = Shell(tmp_path)
    said = {}
    # the page's own ports may be taken on this machine
    ports = {port: str(free_port()) for line in COMMANDS for port in ENDPOINT.findall(line)}
    assert len(ports) == 2
    try:
        for line in COMMANDS:
            said[line] = shell.run(ENDPOINT.sub(lambda found: ports[found[0]], line))
        assert shell.codes == [0, 0, 0], "what the page starts, it stops"
    finally:
        shell.end()

    def told(beginning):
        (text,) = (text for line, text in said.items() if line.startswith(beginning))
        return text

    assert told("meshnet node doctor first.gguf").splitlines()[-1].startswith("✓ passed")
    assert "taken at its word" not in told("meshnet node doctor first.gguf")
    failed = " ".join(told("meshnet node doctor damaged.gguf").split())
    (shown,) = SHOWN
    assert re.search(re.escape(" ".join(shown.split())).replace("…", "[0-9a-f]{64}"), failed)
    assert "● certified" in told("meshnet node certify")
    assert told("meshnet generate").strip()
    assert "may serve" in told("meshnet shard why-not")
    assert "as those of different layers do" in told("meshnet shard diff")
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert left == {"model.gguf"}
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"model.gguf", ".cache/meshnet/digests.json"}
