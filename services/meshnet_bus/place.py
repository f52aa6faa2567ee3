"""An issuer's place in its chain, judged by what the stream, a tracker and an outbox hold.

Nothing is read here: bytes and places come in, a place or a verdict goes out. A place counts only
if our own key signed the event that it names, because whoever names a wrong one makes us sign two
different events there, and the chain is forked for good.

What an outbox holds is a piece of the chain without gaps (`Standing`):

    origin      the place before the first event kept: everything up to it was pruned, or is known
                from the stream alone
    stored      as far as the stream acknowledged it
    tip         the last event handed: the next one follows it

| how far our chain goes in the stream | is there something pending | verdict |
|---|---|---|
| kept, with the same digest | either | `HELD`: stored up to there, and what follows is to be sent |
| kept, with another digest | either | `FORKED` |
| behind the origin | either | `GAP`: what lies between is not kept |
| ahead of the tip, first look since the start | no | `MOVED_ON`: the chain goes on from there |
| ahead of the tip | any other case | `FORKED` |

`HELD` is also the verdict when the stream lost what it had acknowledged: it goes back, and the bytes
kept are sent again. An old event of ours that was stored again is not judged: `kept_chain` sees how
far the chain goes without it.

A place that neither the stream nor a tracker shows is lost (`PlaceLost`), and an operator gives
another: a `node.enrolled` with `chain_from` lets the chain start anew behind that event. The node
hears of it from a tracker, as the head of its chain, and follows it if the operator who signed it is
one that the node was told itself. What it keeps of the old chain must be moved away before.
"""

from collections.abc import Awaitable, Callable, Collection
from enum import Enum, auto
from pathlib import Path

import msgspec
from msgspec import Struct

from meshnet_events import subjects
from meshnet_events.envelope import ChainHead
from meshnet_events.facts import NodeEnrolled
from meshnet_events.gate import Gate
from meshnet_events.reasons import Refusal
from meshnet_events.screened import Event

AskHead = Callable[[int], Awaitable[bytes | None]]
"""Asks a tracker for the event at the head of our chain, as of the given sequence or later.

The bytes of that event's body, or None when nothing of ours was ever heard. They may come from
anyone. Raises `Unreachable` when no tracker answers.
"""


class KeyInUse(Exception):
    """Another process publishes with this event key."""


class PlaceLost(Exception):
    """The issuer's place in its chain is shown neither by its last record nor by a tracker."""


class _IssuedBy(Struct, frozen=True):
    issuer: str


class _Message(Struct, frozen=True):
    event: _IssuedBy


class _Anew(Struct, frozen=True):
    """An enrolment that lets our chain start anew: whose it is, and the place it gives."""

    issuer: str
    place: ChainHead


class Standing(Struct, frozen=True):
    """How far the piece of the chain that an outbox holds reaches."""

    origin: ChainHead
    stored: ChainHead
    tip: ChainHead

    @property
    def pending(self) -> int:
        """How many events are not acknowledged."""
        return self.tip.issuerseq - self.stored.issuerseq


class Verdict(Enum):
    """What the stream's last event of ours means for an outbox: see the table above."""

    HELD = auto()
    MOVED_ON = auto()
    FORKED = auto()
    GAP = auto()


def judge(standing: Standing, place: ChainHead, kept: str | None, *, is_first: bool) -> Verdict:
    """Compare the `place` up to which the stream holds our chain with what an outbox holds.

    `kept` is the digest that the outbox has at that place, `is_first` whether this is the first
    look since the outbox was opened: later ones know of everything that this process wrote.
    """
    if place.issuerseq < standing.origin.issuerseq:
        return Verdict.GAP
    if place.issuerseq > standing.tip.issuerseq:
        return Verdict.MOVED_ON if is_first and not standing.pending else Verdict.FORKED
    return Verdict.HELD if kept == place.digest else Verdict.FORKED


class OwnEvents:
    """Recognises the events of one issuer, and of `operators` those that give it another place."""

    def __init__(self, realm: str, issuer: str, *, operators: Collection[str] = ()) -> None:
        self.issuer = issuer
        self._operators = operators
        self.subject = subjects.event(realm, issuer)
        self._gate = Gate(realm)
        self._realm = realm

    def check(self, body: bytes, *, signature: bool = True) -> None:
        """Raise ValueError for what the gate would refuse: the chain would break there for good."""
        screened = self._gate.screen(body, self.subject)
        event = screened.verified() if signature else screened.result
        found = event.data if isinstance(event, Event) else event
        if isinstance(found, Refusal):
            message = f"the gate would refuse this event: {found.code}: {found.detail}"
            raise ValueError(message)  # noqa: TRY004 - the type is right, what it says is not

    def read(self, body: bytes) -> Event | None:
        """The event in `body`, if it is one that our key signed."""
        event = self._gate.screen(body, self.subject).verified()
        return event if isinstance(event, Event) else None

    def place_of(self, body: bytes) -> ChainHead | None:
        """The place in our chain that `body` has, if it is an event that our key signed."""
        event = self.read(body)
        return None if event is None else ChainHead(event.issuerseq, event.digest)

    def told(self, body: bytes | None, shown: ChainHead) -> ChainHead | str:
        """Our place as a tracker tells it, or why that is not to be followed.

        `body` is what `AskHead` gave, asked for a sequence at which the stream showed the place
        `shown`. The event must be ours, and not before `shown`: a place that we once wrote behind
        is never written again. Or it is the `node.enrolled` by which one of the operators that we
        were told ourselves lets our chain start anew.
        """
        if body is None:
            place: ChainHead | None = ChainHead()
        elif (anew := self._anew(body)) is not None:
            if anew.issuer not in self._operators:
                return (
                    f"a tracker names an enrolment by {anew.issuer}, which is no operator's key that "
                    "this node was told: tell it that one too if it is"
                )
            if anew.place.issuerseq >= shown.issuerseq:
                return anew.place
            place = anew.place
        else:
            place = self.place_of(body)
        if place is None:
            return "the event that a tracker named is none that this key signed"
        if place.issuerseq < shown.issuerseq:
            return (
                f"a tracker's chain of this key ends at event {place.issuerseq}, and the stream "
                f"holds event {shown.issuerseq}: those between never counted"
            )
        if place.issuerseq == shown.issuerseq and place.digest != shown.digest:
            return f"a tracker and the stream hold two different events {place.issuerseq}"
        return place

    def _anew(self, body: bytes) -> _Anew | None:
        """The place that an enrolment with `chain_from` gives us, whoever else signed that.

        Signed by our own key it is our event like any other, unless that key is an operator's too.
        """
        try:
            issuer = msgspec.json.decode(body, type=_Message).event.issuer
        except (msgspec.MsgspecError, RecursionError):
            return None
        event = self._gate.screen(body, subjects.event(self._realm, issuer)).verified()
        if not isinstance(event, Event) or not isinstance(event.data, NodeEnrolled):
            return None
        fact = event.data
        if fact.node != self.issuer or fact.chain_from is None:
            return None
        if issuer == self.issuer and issuer not in self._operators:
            return None
        return _Anew(event.issuer, ChainHead(fact.chain_from - 1, event.digest))


def confirm_place(
    own: OwnEvents, body: bytes | None, shown: ChainHead, *, tip: int = 0, kept: Path | None = None
) -> ChainHead:
    """Give the place that a tracker told with `body`; raises `PlaceLost` if it is not to be followed.

    `tip` is the last event of ours in the file `kept`, where there is one.
    """
    told = own.told(body, shown)
    if isinstance(told, ChainHead):
        return told
    raise PlaceLost(
        f"the place of {own.issuer} in its chain is not known: {told}. Is another tracker right? If "
        f"none is: {way_on(max(shown.issuerseq, tip), kept)}"
    )


def way_on(last: int, kept: Path | None = None) -> str:
    """What to do about a lost place; `last` is our last event that anyone may know of."""
    away = "" if kept is None else f"move {kept}* away (what is pending is given up), "
    return (
        f"ask an operator to enrol this key again with chain_from {last + 1} or more, {away}and start "
        "this node where a tracker answers, with that operator's key among those it is told"
    )
