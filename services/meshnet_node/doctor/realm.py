"""Whether the realm and its peers will have this node: its clock, its standing, its endpoint.

How to ask is injected, so that this decides and the caller acts: each question is an async callable that
raises whatever goes wrong, and is given at most `ASK_TIMEOUT_S`. One that is None cannot be asked, and
its check is skipped with the reason.

A clock is read before and after the broker was asked; the broker's time is held against the middle. It
may be wrong by half of the round trip, so a skew counts only where it goes beyond that.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
from msgspec import Struct

from meshnet_events.answers import ClockAnswer, NodeAnswer
from meshnet_events.facts import DEFAULT_POLICY
from meshnet_node.doctor.check import Check, Silent, Telling, make_waiting_checks
from meshnet_node.doctor.finding import Diagnosis, Finding, failed, ok, skipped, warning
from meshnet_node.session.transport import Endpoint

ASK_TIMEOUT_S = 15.0
_WARN_AT = 0.1
_NS_PER_MS = 1_000_000


class EndpointProbe(Protocol):
    """Reaches an endpoint as a peer would, and learns who answers."""

    async def __call__(self, endpoint: str) -> str:
        """The key (U…) of whoever answers at `endpoint`, `grpc://host:port`. Raises when nobody does.

        Where nothing listens because the node does not run, it listens itself while it asks.
        """


class RealmCase(Struct, frozen=True, kw_only=True):
    """What is asked, and how. `unasked` is why there is nobody to ask, for what is None.

    `has_certificate` is whether this side could answer at an endpoint of grpcs://.
    """

    node: str | None
    endpoint: str | None = None
    ask_clock: Callable[[], Awaitable[ClockAnswer]] | None = None
    ask_node: Callable[[str], Awaitable[NodeAnswer]] | None = None
    reach: EndpointProbe | None = None
    has_certificate: bool = False
    unasked: str = "no server is named"
    clock_ns: Callable[[], int] = time.time_ns


async def examine_realm(case: RealmCase, *, telling: Telling | None = None) -> Diagnosis:
    """Make the checks of the realm."""
    return Diagnosis(await make_waiting_checks(REALM_CHECKS, case, telling or Silent()))


async def _clock(case: RealmCase) -> Finding:
    if case.ask_clock is None:
        return skipped("clock", case.unasked, _NAME_SERVER)
    before, began = case.clock_ns(), time.monotonic_ns()
    with anyio.fail_after(ASK_TIMEOUT_S):
        told = await case.ask_clock()
    half = (time.monotonic_ns() - began) // 2
    skew_ms = (before + half - told.time_ns) // _NS_PER_MS
    beyond_ms = max(0, abs(skew_ms) - half // _NS_PER_MS)
    way = "ahead of" if skew_ms > 0 else "behind"
    most_ms, by = told.max_clock_skew_ms, ""
    if most_ms is None:
        most_ms, by = DEFAULT_POLICY.max_clock_skew_ms, " by the default policy"
    said = (
        f"this machine's clock is {abs(skew_ms):,} ms {way} the broker's (± {half // _NS_PER_MS:,} ms, "
        f"half the round trip); at most {most_ms:,} ms are allowed{by}"
    )
    if beyond_ms > most_ms:
        return failed("clock", said, _SET_CLOCK)
    if beyond_ms > most_ms * _WARN_AT:
        return warning("clock", said, _SET_CLOCK)
    return ok("clock", said)


async def _tracker(case: RealmCase) -> Finding:
    if case.ask_node is None:
        return skipped("tracker", case.unasked, _NAME_SERVER)
    if case.node is None:
        return skipped("tracker", "there is no node key to ask about", "`meshnet node init`")
    with anyio.fail_after(ASK_TIMEOUT_S):
        answer = await case.ask_node(case.node)
    if answer.node != case.node:
        return failed(
            "tracker",
            f"it answered about {answer.node}, expected {case.node}",
            "ask the operator what answers the realm's queries",
        )
    said = f"a tracker answers: this node is {answer.status}"
    if answer.status in _STANDING:
        return failed("tracker", said, _STANDING[answer.status])
    if not answer.may_speak:
        return failed("tracker", f"{said}, and what it says is not heard", _ENROL)
    named = f", as {answer.label!r}" if answer.label else ""
    return ok("tracker", f"{said}{named}")


async def _endpoint(case: RealmCase) -> Finding:
    endpoint = case.endpoint
    if endpoint is None:
        return skipped("endpoint", "no endpoint is named", "name it with --endpoint")
    try:
        parsed = Endpoint.parse(endpoint)
    except ValueError as error:
        return failed("endpoint", str(error), "name where peers reach this node with --endpoint")
    if parsed.is_unspecified:
        return failed(
            "endpoint",
            f"{endpoint} is every address of this machine and none that peers could reach",
            "name the address or the host name that peers see",
        )
    if parsed.secure and not case.has_certificate:
        return failed(
            "endpoint",
            f"{endpoint} is mutual TLS, and no certificate is named to show there",
            "name --tls-authority, --tls-certificate and --tls-key, or an endpoint of grpc://",
        )
    if case.node is None:
        return skipped("endpoint", "there is no node key to answer there", "`meshnet node init`")
    if case.reach is None:
        return skipped("endpoint", "nobody here can try it")
    with anyio.fail_after(ASK_TIMEOUT_S):
        answered = await case.reach(endpoint)
    if answered != case.node:
        return failed(
            "endpoint",
            f"{endpoint} is answered by {answered[:80]}, expected {case.node}",
            "another node has this address: name this node's own, or stop the other",
        )
    if parsed.is_loopback:
        return warning(
            "endpoint",
            f"{endpoint} answers with this node's key; only this machine can reach it",
            "fine for trying out; name an address that other machines reach",
        )
    return ok("endpoint", f"{endpoint} answers with this node's key")


_NAME_SERVER = "name it with --server, MESHNET_SERVER or a profile"
_SET_CLOCK = "set this machine's clock by a time server (NTP); proofs and events are judged by time"
_ENROL = (
    "an operator must enrol it: `meshnet admin node enrol` with the enrol.json of its directory"
)
_STANDING = {
    "suspended": "ask the operator why; `meshnet admin node reinstate` lifts it",
    "conflict": "two machines spoke with this key: stop the other one, or make a new key if it is not "
    "yours; an operator then lifts it with `meshnet admin node reinstate`",
}

REALM_CHECKS: tuple[Check[RealmCase, Awaitable[Finding]], ...] = (
    Check(
        "clock",
        _clock,
        "see that the realm's server and a tracker run, and that it is the right one",
    ),
    Check("tracker", _tracker, "see that a tracker of this realm runs (`meshnet up` has one)"),
    Check(
        "endpoint",
        _endpoint,
        "open the port in firewalls and routers, and see that the name leads to this machine",
    ),
)
