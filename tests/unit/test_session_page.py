"""The page on sessions for other languages: its digests are those that a forward makes."""

import re
from pathlib import Path

from meshnet_node.forward import Digests, token_bytes

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "session.md").read_text()


def test_the_worked_digests_are_those_that_a_forward_makes():
    digests = Digests()
    for frame in ((3, 14), (15,), (92,), (65,)):  # however the ids are divided over frames
        digests.entered(token_bytes(frame))
    for token in (92, 65, 35):
        digests.generated(token)
    seen = digests.seen(is_last=True)
    shown = dict(re.findall(r"^(\w+_digest) +sha256\(.*\)\n +([0-9a-f]{64})$", PAGE, re.MULTILINE))
    assert shown == {"input_digest": seen.in_digest, "output_digest": seen.output_digest}


def test_the_bytes_that_are_shown_are_those_that_are_hashed():
    shown = re.findall(r"sha256\(([0-9a-f ]+)\)", PAGE)
    assert [bytes.fromhex(one) for one in shown] == [
        token_bytes((3, 14, 15, 92, 65)),
        token_bytes((92, 65, 35)),
    ]
