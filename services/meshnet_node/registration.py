"""The fact that registers a shard, made of what its owner declares and what the doctor proved."""

import msgspec
from msgspec import Struct

from meshnet_events.envelope import canonical
from meshnet_events.facts import Host, ShardRegistered
from meshnet_node.admission import AdmissionRequirement, admit
from meshnet_node.capability import CapabilityReport
from meshnet_node.recipe_identity import ShardIdentity


class Offer(Struct, frozen=True):
    """A shard as it is about to be registered, with the proof that this machine computes it."""

    shard_id: str
    identity: ShardIdentity
    report: CapabilityReport
    device: str

    def admit(self) -> None:
        """Raise CapabilityAdmissionError unless the proof is fresh, passed, and about just this."""
        admit(AdmissionRequirement.for_identity(self.identity, device=self.device), self.report)


def registration(offer: Offer, *, boot_id: str, endpoint: str, host: Host) -> ShardRegistered:
    """The fact that registers `offer`, once its proof was admitted here.

    Raises CapabilityAdmissionError, and ValueError for what the contract has no form for.
    """
    offer.admit()
    return ShardRegistered(
        boot_id=boot_id,
        capability=offer.report.to_fact(),
        device=offer.device,
        endpoint=endpoint,
        host=host,
        identity=msgspec.Raw(canonical(offer.identity.to_dict(with_fingerprint=True))),
        shard_id=offer.shard_id,
    )
