"""The fact that registers a shard, made of what its owner declares and what the doctor proved."""

import time

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from meshnet_events.answers import ClockAnswer
from meshnet_events.envelope import canonical
from meshnet_events.facts import Host, ShardRegistered
from meshnet_node.admission import AdmissionRequirement, CapabilityAdmissionError, admit
from meshnet_node.capability import CapabilityReport
from meshnet_node.recipe_identity import ShardIdentity


class Offer(Struct, frozen=True):
    """A shard as it is about to be registered, with the proof that this machine computes it."""

    shard_id: str
    identity: ShardIdentity
    report: CapabilityReport
    device: str

    def admit(self, broker: ClockAnswer | None = None) -> None:
        """Raise CapabilityAdmissionError unless the proof is fresh, passed, and about just this.

        How fresh is judged by the broker's clock and the policy in force, as the registry will, where
        `broker` tells them; else by this machine's clock and the default policy.
        """
        requirement = AdmissionRequirement.for_identity(self.identity, device=self.device)
        if broker is None:
            admit(requirement, self.report)
            return
        if (age_ms := broker.max_report_age_ms) is not None:
            requirement = replace(requirement, max_age_seconds=age_ms / 1e3)
        if (skew_ms := broker.max_clock_skew_ms) is not None:
            requirement = replace(requirement, max_clock_skew_seconds=skew_ms / 1e3)
        try:
            admit(requirement, self.report, now=broker.time_ns / 1e9)
        except CapabilityAdmissionError as refusal:
            apart = time.time() - broker.time_ns / 1e9
            if abs(apart) <= requirement.max_clock_skew_seconds:
                raise
            raise CapabilityAdmissionError(
                refusal.reason,
                f"by the broker's clock, as the registry judges {self.shard_id}: {refusal.message}. "
                f"This machine's clock is {abs(apart):,.0f} s {'ahead of' if apart > 0 else 'behind'} "
                "the broker's: set it by a time server (NTP), and prove the shard again",
            ) from refusal


def registration(
    offer: Offer, *, boot_id: str, endpoint: str, host: Host, broker: ClockAnswer | None = None
) -> ShardRegistered:
    """The fact that registers `offer`, once its proof was admitted here (`Offer.admit`).

    Raises CapabilityAdmissionError, and ValueError for what the contract has no form for.
    """
    offer.admit(broker)
    return ShardRegistered(
        boot_id=boot_id,
        capability=offer.report.to_fact(),
        device=offer.device,
        endpoint=endpoint,
        host=host,
        identity=msgspec.Raw(canonical(offer.identity.to_dict(with_fingerprint=True))),
        shard_id=offer.shard_id,
    )
