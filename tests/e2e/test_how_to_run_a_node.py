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
ENDPOINT = re.compile(r"(?<=grpc://127\.0\.0\.1:)\d+")


class Shell:
    """One shell's lines, one after another; what is left in the background is ended at the end."""

    def __init__(self, folder):
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if "MESHNET" not in name}
        self.env = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.background = []

    def run(self, line):
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

    def end(self):
        """End what runs, the last first; their exit codes."""
        codes = []
        for process in reversed(self.background):
            process.send_signal(signal.SIGTERM)
            codes.append(process.wait(30))
        return codes


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
    finally:
        codes = shell.end()
    assert codes == [0, 0, 0]
    by_command = {tuple(re.findall(r"meshnet (\w+)(?: (\w+))?", line)[0]): text
                  for line, text in said.items() if line.startswith("meshnet")}  # fmt: skip
    assert "passed" in by_command["node", "doctor"]
    assert "● certified" in by_command["node", "certify"]
    assert by_command["generate", ""].strip()
