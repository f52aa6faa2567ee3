"""A node at work: registers its shards, serves sessions, says that it is alive, and takes its leave.

    listen            before anything is said, so that whoever hears of us finds us
    register          every shard, in a boot of its own: a UUID that no process had before
    serve             sessions; presence every few seconds; refused neighbours are tried again
    withdraw          when told to stop: every shard, then everything said is sent
    end               in bounded time, also where a call of a backend never returns

What is said goes through the outbox: a node that dies says the rest when it starts again. Its claims
then end by themselves, as the new boot registers.

A node also asks the tracker, after it has registered and now and then, what has become of its claims,
and tells its owner when that changes. When a newer boot of its key has taken its place, or an operator
made its boot one of the past, it stops (`BootIsOver`): nothing this process does will count again.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Literal, TypeVar

import anyio
from msgspec import Struct

from meshnet_bus.asker import Asker, QueryRefused, ask_head
from meshnet_bus.client import SafeClient, Unreachable, closing, connect
from meshnet_bus.groups import sole
from meshnet_bus.outbox import Handed, Outbox
from meshnet_bus.outbox_file import OutboxError
from meshnet_bus.presence import SEND_EVERY_S, send_presence
from meshnet_bus.root import check_root
from meshnet_events.answers import ClaimAnswer
from meshnet_events.facts import Host, ShardWithdrawn
from meshnet_events.keys import EventKey
from meshnet_events.presence import Presence
from meshnet_events.queries import NOT_FOUND, ClaimQuery, ClockQuery, NodeQuery
from meshnet_node.admission import CapabilityAdmissionError
from meshnet_node.backends import LoadedShard
from meshnet_node.directory import NodeDirectory
from meshnet_node.registration import Offer, registration
from meshnet_node.session.node import Limits, Node, ServedShard
from meshnet_node.session.responder import CALLS_TIMEOUT_S, Responder, serve
from meshnet_node.session.retry import try_again
from meshnet_node.session.transport import Endpoint, Tls, default_listen
from meshnet_node.shard_facts import ShardFacts

ASK_EVERY_S = 15.0

RETRY_EVERY_S = 5.0
_PATIENCE_S = 30.0
_CHECK_TIMEOUT_S = 15.0
_LEAVE_TIMEOUT_S = 10.0
_log = logging.getLogger("meshnet_node")


class BootIsOver(Exception):
    """A newer boot has taken this one's place, or an operator ended it: this process is of the past."""


class NotAdmitted(Exception):
    """The registry did not take a registration; the message says why, and what to do."""


class ServeSettings(Struct, frozen=True, kw_only=True):
    """Where a node belongs and how it is reached. `listen` is by default the endpoint itself.

    Every `ask_every_s` a tracker is asked what has become of the claims. `operator` is the key
    that we were told: it must have created the realm, and may let this node's chain start anew.
    """

    realm: str
    server: str
    directory: NodeDirectory
    endpoint: str
    host: Host
    listen: str | None = None
    tls: Tls | None = None
    limits: Limits = Limits()
    ask_every_s: float = ASK_EVERY_S
    operator: str | None = None


class LoadedOffer(Struct, frozen=True):
    """A shard that is loaded, what it says of itself, and the proof that it computes."""

    offer: Offer
    loaded: LoadedShard
    facts: ShardFacts


_T = TypeVar("_T")
Kind = Literal[
    "listening", "registered", "verdict", "trouble", "answering", "withdrawn", "abandoned"
]


class Notice(Struct, frozen=True):
    """Something that a node's owner should know.

    `abandoned`: a thread is still at work in a shard (`ServedShard.abandon`). It must not be closed, and
    Python would wait for the thread: only `os._exit` ends this process.
    """

    kind: Kind
    text: str
    claim: ClaimAnswer | None = None


Tell = Callable[[Notice], None]


async def serve_node(
    settings: ServeSettings,
    key: EventKey,
    shards: Sequence[LoadedOffer],
    *,
    stop: Callable[[], Awaitable[object]],
    tell: Tell,
) -> None:
    """Serve `shards` until `stop` returns, then withdraw them. From then on all is bounded.

    The last thing that is told, also where this raises, is each shard that a backend's call did not
    come back from: `abandoned`.

    Raises NotAdmitted and BootIsOver; to begin with `Unreachable` when the bus cannot be reached,
    `WrongRoot`, CannotListen, and ValueError for an endpoint that is none, or
    of grpcs:// without certificates; and what `Outbox.open` and `Outbox.run` raise.
    """
    endpoint = Endpoint.parse(settings.endpoint)
    if endpoint.secure and settings.tls is None:
        raise ValueError(
            f"{settings.endpoint}: an endpoint of grpcs:// needs certificates, and none were given"
        )
    async with AsyncExitStack() as stack:
        nc = await connect(settings.server, name=f"meshnet-node {key.public[:12]}")
        await stack.enter_async_context(closing(nc))
        if settings.operator is not None:
            await check_root(nc, settings.realm, settings.operator)
        asker = Asker(nc, settings.realm)
        outbox = await stack.enter_async_context(
            Outbox.open(
                settings.directory.outbox,
                nc,
                settings.realm,
                key,
                ask_head=ask_head(asker, key.public),
                operators=() if settings.operator is None else (settings.operator,),
            )
        )
        node = Node(
            realm=settings.realm,
            key=key,
            boot_id=str(uuid.uuid4()),
            shards={one.offer.shard_id: _served(one) for one in shards},
            tracker=asker,
            outbox=outbox,
            tls=settings.tls,
            limits=settings.limits,
        )
        stack.callback(_tell_abandoned, node, tell)
        listen = settings.listen or default_listen(endpoint)
        tls = settings.tls if endpoint.secure else None
        responder = await stack.enter_async_context(serve(node, listen, tls=tls))
        tell(Notice("listening", f"listening at {listen} as {settings.endpoint}"))
        offers = [one.offer for one in shards]
        try:
            await _Life(settings, node, offers, nc, outbox, asker, responder, tell).live(stop)
        except BaseExceptionGroup as group:
            raise sole(group) from None


def _served(one: LoadedOffer) -> ServedShard:
    offer = one.offer
    return ServedShard(
        offer.shard_id,
        offer.identity,
        one.loaded,
        one.facts,
        synthetic=offer.report.synthetic,
    )


def _tell_abandoned(node: Node, tell: Tell) -> None:
    for shard in node.shards.values():
        if shard.is_still_at_work:
            text = (
                f"a call of the backend did not return in {CALLS_TIMEOUT_S:g} s; ending without it"
            )
            tell(Notice("abandoned", f"{shard.shard_id}: {text}"))


class _Life:
    """One boot, from registration to withdrawal."""

    def __init__(
        self,
        settings: ServeSettings,
        node: Node,
        offers: Sequence[Offer],
        nc: SafeClient,
        outbox: Outbox,
        asker: Asker,
        responder: Responder,
        tell: Tell,
    ) -> None:
        self._settings = settings
        self._node = node
        self._offers = offers
        self._nc = nc
        self._outbox = outbox
        self._asker = asker
        self._responder = responder
        self._tell = tell
        self._handed: dict[str, Handed] = {}
        """By shard, its registration: what is not handed is not withdrawn."""
        self._registered: dict[str, int] = {}
        """By shard, a sequence that its registration is not behind."""
        self._verdicts: dict[str, tuple[object, ...]] = {}
        self._answering = frozenset(node.shards)

    async def live(self, stop: Callable[[], Awaitable[object]]) -> None:
        """Register, serve until told to stop, withdraw."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._outbox.run)
            async with anyio.create_task_group() as work:
                work.start_soon(self._register)
                work.start_soon(self._say_alive)
                work.start_soon(self._look_after_claims)
                work.start_soon(self._try_refused_again)
                await stop()
                work.cancel_scope.cancel()
            self._responder.stop_taking()
            await self._withdraw()
            tasks.cancel_scope.cancel()

    async def _register(self) -> None:
        settings, boot_id = self._settings, self._node.boot_id
        clock = await self._told(self._asker.ask(ClockQuery()), "what time it is")
        try:
            facts = [
                registration(
                    offer,
                    boot_id=boot_id,
                    endpoint=settings.endpoint,
                    host=settings.host,
                    broker=clock,
                )
                for offer in self._offers
            ]
        except CapabilityAdmissionError as error:
            # a node that is started again and again would else leave a refused registration each time
            raise NotAdmitted(f"{error}; nothing was registered") from error
        await self._told(self._check_host(), "on which host this node was")
        settings.directory.keep_boot(boot_id)
        for fact in facts:
            self._handed[fact.shard_id] = await self._outbox.hand(fact)
        for shard_id, one in self._handed.items():
            sequence = await self._stored(shard_id, one)
            self._tell(Notice("registered", f"{shard_id} is registered at sequence {sequence}"))
            self._registered[shard_id] = sequence
            await self._look_after(shard_id)

    async def _told(self, asked: Awaitable[_T], what: str) -> _T | None:
        """What a tracker tells before anything is registered; None where none does, in good time."""
        try:
            with anyio.fail_after(_CHECK_TIMEOUT_S):
                return await asked
        except (QueryRefused, Unreachable, TimeoutError) as error:
            _log.info("no tracker says %s: %s", what, error or "it takes too long")
            return None

    async def _check_host(self) -> None:
        """Raise NotAdmitted where registering would look like a copied key.

        A node with a live claim on one host that registers on another is in conflict until an operator
        reinstates it. Whoever moved a machine, or forgot to declare its name again, should hear of that
        before; a thief does not ask.
        """
        node, host = self._node, self._settings.host
        known = await self._asker.ask(NodeQuery(node=node.key.public))
        for shard_id in known.shards:
            claim = await self._asker.ask(ClaimQuery(node=node.key.public, shard_id=shard_id))
            if claim.status == "live" and claim.host.id != host.id:
                raise NotAdmitted(
                    f"{shard_id} of this node is live on another host (by {claim.host.source}, "
                    f"{claim.host.id[:12]}; this one is by {host.source}, {host.id[:12]}), and two "
                    "hosts with one key are a conflict. If it is this machine, name it as before "
                    "(--declared-host, or none); if the node moved, `meshnet node withdraw` first; "
                    "if neither, the key was copied: ask the operator to suspend the node"
                )

    async def _stored(self, shard_id: str, handed: Handed) -> int:
        """Wait until a registration is stored, and say so where that takes long."""
        while True:
            with anyio.move_on_after(_PATIENCE_S):
                return (await self._outbox.stored(handed)).sequence
            self._trouble(f"{shard_id} is not registered yet: {self._outbox.trouble}")

    async def _withdraw(self) -> None:
        """Take back every shard that was registered, and wait for that to be stored, not for ever."""
        with anyio.move_on_after(_LEAVE_TIMEOUT_S, shield=True):
            try:
                for shard_id in self._handed:
                    await self._outbox.hand(
                        ShardWithdrawn(
                            boot_id=self._node.boot_id,
                            reason="the node was told to stop",
                            shard_id=shard_id,
                        )
                    )
                await self._outbox.drained()
            except (OutboxError, Unreachable) as error:
                self._trouble(f"the shards are not withdrawn: {error}")
                return
            text = "every shard is withdrawn" if self._handed else "no shard was registered"
            self._tell(Notice("withdrawn", text))
            return
        self._trouble(
            f"{self._settings.directory.outbox} holds {self._outbox.pending} unsent: what this node had "
            "to say is said when it starts again"
        )

    async def _say_alive(self) -> None:
        while True:
            try:
                await self._send_presence()
            except Unreachable as error:
                _log.info("presence was not sent: %s", error)
            await anyio.sleep(SEND_EVERY_S)

    async def _send_presence(self) -> None:
        """Say that this node is alive, with the shards that can be computed with just now."""
        answering = self._node.answering
        self._tell_hanging(frozenset(answering))
        presence = Presence(
            boot_id=self._node.boot_id,
            load=self._responder.load,
            shards=answering,
        )
        await send_presence(self._nc, self._node.realm, self._node.key.public, presence)

    def _tell_hanging(self, answering: frozenset[str]) -> None:
        """Tell, once each way, of backends that do not come back from a call, and of those that did."""
        for shard_id in sorted(self._answering - answering):
            self._trouble(
                f"{shard_id}: the backend has been in one call for more than "
                f"{self._node.limits.step_timeout_s:g} s; until it returns no route is to use this shard"
            )
        for shard_id in sorted(answering - self._answering):
            text = f"{shard_id}: the backend has returned; routes may use this shard again"
            self._tell(Notice("answering", text))
        self._answering = answering

    async def _try_refused_again(self) -> None:
        while True:
            await anyio.sleep(RETRY_EVERY_S)
            for refused in self._node.results.due(now_s=self._node.monotonic_s()):
                await try_again(self._node, refused)

    async def _look_after_claims(self) -> None:
        while True:
            await anyio.sleep(self._settings.ask_every_s)
            for shard_id in tuple(self._registered):
                await self._look_after(shard_id)

    async def _look_after(self, shard_id: str) -> None:
        """Ask what has become of a registration that is stored, and tell what is new.

        Raises BootIsOver and NotAdmitted. Only an answer that has seen the registration counts: a
        tracker that lags still lists what was before.
        """
        sequence = self._registered[shard_id]
        query = ClaimQuery(node=self._node.key.public, shard_id=shard_id, min_sequence=sequence)
        try:
            claim = await self._asker.ask(query)
        except QueryRefused as refusal:
            if refusal.code == NOT_FOUND:
                raise NotAdmitted(await self._why_unheard(shard_id)) from refusal
            self._say(shard_id, (refusal.code,), f"the tracker does not say: {refusal}")
            return
        except Unreachable as error:
            self._say(shard_id, (), f"no tracker says what became of {shard_id}: {error}")
            return
        await self._judge(claim, sequence)

    async def _judge(self, claim: ClaimAnswer, sequence: int) -> None:
        """What a claim, answered after our registration at `sequence`, says of this boot."""
        shard_id, is_ours = claim.shard_id, claim.boot_id == self._node.boot_id
        if not is_ours and claim.registered_sequence <= sequence:
            raise NotAdmitted(await self._why_unheard(shard_id))
        if not is_ours or claim.status == "superseded":
            raise BootIsOver(
                f"{shard_id}: {_why_over(claim, is_ours=is_ours)}; nothing that this process does "
                "counts any more"
            )
        if claim.status == "refused":
            raise NotAdmitted(
                f"{shard_id} was refused: {claim.refusal}: {claim.refusal_detail}; mend that and "
                "start again"
            )
        verdict = (claim.status, claim.reasons, claim.recipe_status)
        if self._verdicts.get(shard_id) != verdict:
            self._verdicts[shard_id] = verdict
            self._tell(Notice("verdict", _verdict_text(claim), claim))

    async def _why_unheard(self, shard_id: str) -> str:
        """Why a registration that is stored made no claim."""
        key = self._node.key.public
        said = f"the registration of {shard_id} is stored, and the registry did not take it"
        try:
            known = await self._asker.ask(NodeQuery(node=key))
        except (QueryRefused, Unreachable) as error:
            return (
                f"{said}; the tracker does not say why ({error}): `meshnet log` shows its outcome"
            )
        if known.may_speak:
            return f"{said}: `meshnet log` shows its outcome"
        return (
            f"{said}: the tracker calls {key} {known.status}. An operator must enrol or reinstate "
            "the node (`meshnet admin node enrol`, `… reinstate`); then start again"
        )

    def _say(self, shard_id: str, verdict: tuple[object, ...], text: str) -> None:
        if self._verdicts.get(shard_id) != verdict:
            self._verdicts[shard_id] = verdict
            self._trouble(text)

    def _trouble(self, text: str) -> None:
        self._tell(Notice("trouble", text))


def _why_over(claim: ClaimAnswer, *, is_ours: bool) -> str:
    if not is_ours:
        return f"boot {claim.boot_id} of this node has taken the place of this one"
    return "an operator ended this boot, so the process must be started again"


def _verdict_text(claim: ClaimAnswer) -> str:
    """What the registry makes of a claim, in a line."""
    may = "serve" if claim.eligible_to_serve else "certify" if claim.eligible_to_certify else ""
    because = f" ({', '.join(claim.reasons)})" if claim.reasons else ""
    return (
        f"{claim.shard_id}: layers [{claim.start}, {claim.end}) of recipe "
        f"{(claim.recipe_key or '?')[:12]}, which is {claim.recipe_status}: "
        f"may {may or 'do nothing'}{because}"
    )
