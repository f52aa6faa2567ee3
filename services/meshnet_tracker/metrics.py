"""What a tracker counts, for Prometheus; each metric's name and labels have their home here.

    meshnet_handshakes_total{result="accepted",reason=""}               41
    meshnet_handshakes_total{result="refused",reason="cache-layout"}     2

| metric | counts |
|---|---|
| `meshnet_handshakes_total{result,reason}` | applied `handshake.completed` records, each once |

A refused handshake counts under its first reason: one of `rules.handshakes.REASONS`, else `other`; an
accepted one has none. So the labels are bounded, and no node is among them. Both sides report a
handshake, so one that happened counts twice if both were heard.

What is counted is what this process folded *and committed*, live and replayed records alike: the
counts ride on the changes that each commit takes anyway, so no record costs more. A restart goes on
behind the last commit and counts from 0 again, as Prometheus expects of a counter; views that are
rebuilt from sequence 1 count the whole log once more. Rates are what to look at.

Each tracker has a registry of its own: nothing is global. Nothing serves one yet: trackers count once
their HTTP API has a `/metrics` to show it at, and until then none of them does.
"""

from prometheus_client import CollectorRegistry, Counter

from meshnet_tracker.registry.rules.handshakes import OTHER, REASONS
from meshnet_tracker.registry.state import Changes


class TrackerMetrics:
    """The metrics of one tracker: `count` is its projector's `on_commit`; `registry` is shown."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._handshakes = Counter(
            "meshnet_handshakes",
            "Handshakes that a node reported, by result and first reason of a refusal.",
            ("result", "reason"),
            registry=self.registry,
        )
        # shown as 0 from the start: a series that begins with its first refusal has no rate
        for reason in ("", *sorted(REASONS), OTHER):
            self._handshakes.labels(_result(reason), reason)

    def count(self, changes: Changes) -> None:
        """Count what a commit wrote."""
        for reason, count in changes.handshakes_said.items():
            self._handshakes.labels(_result(reason), reason).inc(count)


def _result(reason: str) -> str:
    return "refused" if reason else "accepted"
