"""The command line, and a realm that it is told of."""

import pytest

from cli_kit import Cli, end


@pytest.fixture
def meshnet(tmp_path):
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def realm(tmp_path_factory, require):
    """A realm that is up while a module's tests run, and the command line that knows it."""
    require("nats-server")
    cli = Cli(tmp_path_factory.mktemp("realm"))
    cli.said, process = cli.up("--realm", "lab", "--accept-declared-hosts")
    yield cli
    assert end(process) == 0
