"""A backend that is not ours, for tests of whatever loads one."""

import importlib

import pytest

import third_party


@pytest.fixture(scope="module")
def acme_toy(tmp_path_factory, require):
    """The third party's module, installed and found as any other."""
    require("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(third_party.install(tmp_path_factory.mktemp("site")))
        yield importlib.import_module("acme_toy")
