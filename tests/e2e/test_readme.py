"""What the README tells a stranger to type is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = sorted(
    {
        tuple(word for word in line.split("#")[0].split()[1:] if re.fullmatch("[a-z-]+", word))
        for line in README.splitlines()
        if line.startswith("meshnet ")
    }
)


def test_the_readme_shows_commands():
    assert ("up",) in COMMANDS
    assert ("audit", "replay") in COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_readme_is_there_and_explains_itself(command):
    done = subprocess.run(
        [sys.executable, "-m", "meshnet_cli", *command, "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_page_for_a_node_goes_through_the_commands_in_their_order():
    page = (ROOT / "docs" / "how-to" / "run-a-node.md").read_text()
    ran = iter(re.findall(r"^meshnet (.+)", page, re.MULTILINE))
    shown = [line.split("#")[0].split()[1:] for line in README.splitlines()
             if line.startswith("meshnet ")]  # fmt: skip
    for words in shown:
        command = " ".join(word for word in words if re.fullmatch("[a-z-]+", word))
        assert any(line.startswith(command) for line in ran), command


def test_the_readme_says_how_fast_with_the_numbers_of_the_measurements():
    page = (ROOT / "docs" / "explanation" / "measurements.md").read_text()
    for number in re.findall(r"\| (0\.\d\d) \|", README):
        assert number in page, number


@pytest.mark.parametrize("task", sorted(set(re.findall(r"^make (\w+)", README, re.MULTILINE))))
def test_make_knows_the_task(task):
    done = subprocess.run(["make", "-n", task], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
