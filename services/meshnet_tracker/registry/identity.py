"""From the identity block of a registration to the `Identity` that the registry keeps.

Blocks repeat: every node that serves the same layers of the same recipe sends the same bytes. What
was derived from bytes once is remembered for the same bytes, within a bound in number and in size
(a block of any catalogue is about a kilobyte; one as large as a body is read anew each time). It is
a function of those bytes alone, so the memory changes no answer.
"""

import msgspec

from meshnet_events.facts import recipe_key
from meshnet_events.reasons import BAD_IDENTITY, Refusal
from meshnet_tracker.recipe import BlockError, derive
from meshnet_tracker.registry.rows import Identity

_REMEMBERED = 16_384
_REMEMBERED_LENGTH = 4_096


class IdentityReader:
    """Derives identities, remembering what it derived."""

    def __init__(self) -> None:
        self._known: dict[bytes, Identity | Refusal] = {}

    def read(self, block: bytes) -> Identity | Refusal:
        """What `block`, canonical JSON of an object, identifies; or `bad-identity`."""
        known = self._known.get(block)
        if known is None:
            known = _read(block)
            if len(block) <= _REMEMBERED_LENGTH:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[block] = known
        return known


def _read(block: bytes) -> Identity | Refusal:
    members = msgspec.json.decode(block)
    try:
        artifact_digest, recipe_digest = derive(members)
    except BlockError as error:
        return Refusal(BAD_IDENTITY, str(error))
    if "fingerprint" not in members:
        return Refusal(BAD_IDENTITY, "fingerprint: a registration must declare one")
    artifact, recipe = members["artifact"], members["recipe"]
    return Identity(
        artifact_id=artifact["artifact_id"],
        backend_id=recipe["backend_id"],
        catalogue_version=recipe["catalogue_version"],
        layer_count=artifact["layer_count"],
        model_artifact_digest=artifact_digest,
        recipe_id=recipe["recipe_id"],
        recipe_key=recipe_key(artifact_digest, recipe_digest),
        recipe_version=recipe["recipe_version"],
        runtime_recipe_digest=recipe_digest,
        shard_end=members["shard_end"],
        shard_start=members["shard_start"],
    )
