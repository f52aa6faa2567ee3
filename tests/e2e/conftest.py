"""The command line, a realm that it is told of, and nodes in it."""

import pytest

from cli_kit import Cli, realm_up


@pytest.fixture
def meshnet(tmp_path):
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def realm(tmp_path_factory, require):
    """A realm that is up while a module's tests run, and the command line that knows it."""
    require("nats-server")
    with realm_up(tmp_path_factory.mktemp("realm"), "--accept-declared-hosts") as cli:
        yield cli


@pytest.fixture
def nodes_of(tmp_path, require):
    """`nodes_of(realm)`: nodes of a test's own, which end with it."""
    for part in ("numpy", "gguf", "sentencepiece"):
        require(part)
    from node_kit import Nodes

    made = []

    def make(realm):
        made.append(Nodes(realm, tmp_path))
        return made[-1]

    yield make
    for nodes in made:
        nodes.stop()


@pytest.fixture
def nodes(realm, nodes_of):
    """Nodes in the module's realm."""
    return nodes_of(realm)
