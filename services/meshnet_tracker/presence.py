"""Who is alive, by the presence that a tracker heard: the overlay that eligibility and routes take.

A claim is live if presence within `LIVE_FOR_S` named its boot and shard. It is nothing but that: it
enters no row, no view and no digest, and two trackers may differ on it for a moment.

- The newest word of a boot counts, so a shard that it no longer names is not live, at once.
- Presence of a node's *current* boot is kept by node, so there is one entry a node at most. All other
  presence is *early*: of a node that has not registered yet, or not in this boot, as far as the state
  was folded. It is kept too, so that a node which sends presence and registers is live at once, in
  whichever order a tracker hears of the two; but only the newest `MAX_EARLY` issuers are. A process
  that outlives its boot ends there, and takes nothing from its successor.
- Both hold what was heard in the last `LIVE_FOR_S` and are in the order of hearing, so forgetting
  costs nothing: a flood of made-up issuers finds a bound, and can push out the early alone, for as
  long as a node takes to send presence again.
- A tracker that has just started has heard nobody, so nobody is live: it is the truth that it can
  tell, and it fails closed. It is over as soon as each node has sent presence once more (5 s).

Time is a monotonic clock in seconds that is passed in.
"""

from collections.abc import Callable

from msgspec import Struct

from meshnet_events.presence import Presence
from meshnet_tracker.registry.eligibility import LIVE_FOR_S
from meshnet_tracker.registry.rows import Claim
from meshnet_tracker.registry.state import State

MAX_EARLY = 4_096
"""How many issuers are remembered whose boot is not the current one of a node."""

BootOf = Callable[[str], str | None]
"""The current boot of a node, as far as the state was folded."""


def boots_in(state: Callable[[], State]) -> BootOf:
    """The boots that a state knows; which state that is, is asked every time."""

    def boot_of(issuer: str) -> str | None:
        node = state().nodes.get(issuer)
        return None if node is None else node.boot_id

    return boot_of


class _Heard(Struct, frozen=True, gc=False):
    """What an issuer said, and when."""

    at_s: float
    presence: Presence


class PresenceOverlay:
    """Implements `registry.eligibility.Liveness`."""

    def __init__(self, boot_of: BootOf, clock: Callable[[], float]) -> None:
        self._boot_of = boot_of
        self._clock = clock
        self._current: dict[str, _Heard] = {}
        self._early: dict[str, _Heard] = {}

    def __len__(self) -> int:
        """How many issuers are remembered."""
        return len(self._current) + len(self._early)

    def hear(self, issuer: str, presence: Presence) -> None:
        """Note what `issuer`, a valid key, has just said. Never raises."""
        now = self._clock()
        is_current = self._boot_of(issuer) == presence.boot_id
        kept = self._current if is_current else self._early
        kept.pop(issuer, None)  # behind all others again
        kept[issuer] = _Heard(now, presence)
        for some in (self._current, self._early):
            _forget(some, before_s=now - LIVE_FOR_S)
        if len(self._early) > MAX_EARLY:
            del self._early[next(iter(self._early))]

    def is_live(self, claim: Claim) -> bool:
        """Whether presence within `LIVE_FOR_S` named the claim's boot and shard."""
        presence = self._heard(claim.node, claim.boot_id)
        return presence is not None and claim.shard_id in presence.shards

    def load(self, node: str) -> int:
        """The node's load as its current boot last said, from 0 to 1000; 0 when it is not heard."""
        boot_id = self._boot_of(node)
        presence = None if boot_id is None else self._heard(node, boot_id)
        return 0 if presence is None else presence.load

    def _heard(self, node: str, boot_id: str) -> Presence | None:
        """The newest word of this boot, if it still counts: what was early is the older."""
        since = self._clock() - LIVE_FOR_S
        for some in (self._current, self._early):
            heard = some.get(node)
            if heard is not None and heard.presence.boot_id == boot_id and heard.at_s >= since:
                return heard.presence
        return None


def _forget(heard: dict[str, _Heard], *, before_s: float) -> None:
    """Drop what was heard before: it is at the front."""
    while heard:
        first = next(iter(heard))
        if heard[first].at_s >= before_s:
            return
        del heard[first]
