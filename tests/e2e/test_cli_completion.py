"""Shell completion, and the errors that go by name."""

import subprocess
from importlib import import_module

import pytest

from meshnet_cli import errors


def test_completion_is_installed_for_a_shell_that_is_named(meshnet):
    said = meshnet("--install-completion", "--shell", "bash").out
    (script,) = meshnet.home.rglob("completions/meshnet")
    assert str(script) in said
    assert "meshnet" in (meshnet.home / ".bashrc").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("meshnet", ""), {"admin", "node", "recipe", "up"}),
        (("meshnet", "audit", ""), {"replay"}),
        (("meshnet", "node", "pin", "--"), {"--layers", "--target"}),
    ],
)
def test_bash_completes_commands_and_options(require, meshnet, words, expected):
    require("bash")
    meshnet("--install-completion", "--shell", "bash")
    (script,) = meshnet.home.rglob("completions/meshnet")
    quoted = " ".join(f"'{word}'" for word in words)
    asking = f"""
        source '{script}'
        COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
        [[ $(complete -p meshnet) =~ -F\\ ([^ ]+) ]] && "${{BASH_REMATCH[1]}}" meshnet
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", asking], capture_output=True, text=True, check=False
    )
    assert expected <= set(done.stdout.split()), done.stderr


@pytest.mark.parametrize("place", errors._KNOWN)
def test_every_error_that_goes_by_name_is_there(place):
    module, _, name = place.rpartition(".")
    error = getattr(import_module(module), name)
    assert issubclass(error, Exception)
    assert f"{error.__module__}.{error.__qualname__}" == place
