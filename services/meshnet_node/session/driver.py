"""The driver of a route: opens it from end to end, puts a prompt in, takes tokens out.

A driver is a node that wants a forward attested, or a user with a key made for the occasion. It sees
token ids and nothing of what crosses the seams; what the hops report about those it checks against
what it sent and received, and against each other, before it writes evidence that anybody is asked to
attest (`forward.make_evidence`).

    async with open_route(caller, plan) as route:
        ids = await route.encode("A mesh is")
        async for token in route.generate(ids, max_tokens=16):
            …
        attestations = await route.certify(completed_at_ms=now)
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from meshnet_events.envelope import canonical
from meshnet_events.facts import Evidence
from meshnet_node.forward import Digests, Report, make_evidence, token_bytes
from meshnet_node.session.failure import SessionFailed, plain, violation
from meshnet_node.session.link import Caller, Link, Request, open_link
from meshnet_node.session.opening import Purpose, RouteHop
from meshnet_node.session.waiting import within
from meshnet_proto import shard_runtime_pb2 as pb

OPEN_TIMEOUT_S = 30.0
STEP_TIMEOUT_S = 90.0
ATTEST_TIMEOUT_S = 45.0


class RoutePlan(Struct, frozen=True):
    """A route that is to be opened, for one session and epoch."""

    purpose: Purpose
    route_session_id: str
    route_epoch: int
    layer_count: int
    hops: tuple[RouteHop, ...]


class Token(Struct, frozen=True):
    """A generated token, and what it adds to the text (UTF-8, whole only with its neighbours)."""

    id: int
    text: bytes


class HopAttestation(Struct, frozen=True):
    """Whether the node at one hop attested; where its event is (0: not stored yet), or why not."""

    hop: int
    node: str
    attested: bool
    detail: str
    sequence: int


class Certification(Struct, frozen=True):
    """What came of asking every hop to attest a forward."""

    evidence: Evidence
    attestations: tuple[HopAttestation, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every participant attested."""
        return all(attestation.attested for attestation in self.attestations)


class Inconsistent(Exception):
    """The hops' reports do not fit together, so there is nothing to attest."""


class Route:
    """An open route. Made by `open_route`."""

    def __init__(self, link: Link, plan: RoutePlan, caller: Caller, ready: pb.SessionReady) -> None:
        self._link = link
        self._plan = plan
        self._caller = caller
        self._digests = Digests()
        self._position = 0
        self.max_positions = ready.max_positions
        """Most positions that may go in: prompt and tokens together."""
        self.vocabulary = ready.vocabulary
        """How many token ids there are."""
        self._end_tokens = frozenset(ready.end_tokens)
        self._max_frame = max(1, ready.max_positions_per_frame)

    async def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, as the first hop's tokenizer has them."""
        await self._send(pb.CallerFrame(prompt=pb.Prompt(text=text)))
        return tuple((await self._receive("tokens", STEP_TIMEOUT_S)).tokens.ids)

    async def generate(
        self, ids: Sequence[int], *, max_tokens: int, stop_at_end: bool = True
    ) -> AsyncIterator[Token]:
        """Put token ids in and yield up to `max_tokens` that come out, greedily chosen.

        With `stop_at_end` one that ends a text is the last, and is yielded. Raises ValueError for a
        prompt that is empty, or too long for that many tokens to follow.
        """
        room = self.max_positions - self._position - len(ids) + 1
        if not ids or room < max_tokens:
            raise ValueError(
                f"a prompt of {len(ids)} tokens and {max_tokens} more do not fit the route's "
                f"{self.max_positions} positions"
                if ids
                else "the prompt is empty"
            )
        inputs = tuple(ids)
        for _ in range(max_tokens):
            token = await self._step(inputs)
            yield token
            if stop_at_end and token.id in self._end_tokens:
                return
            inputs = (token.id,)

    async def _step(self, ids: tuple[int, ...]) -> Token:
        """Put ids in, in as many frames as it takes, and take the token after the last."""
        for start in range(0, len(ids), self._max_frame):
            chunk = ids[start : start + self._max_frame]
            self._digests.entered(token_bytes(chunk))
            tokens = pb.Tokens(
                position=self._position,
                ids=chunk,
                sample=start + len(chunk) == len(ids),
            )
            self._position += len(chunk)
            await self._send(pb.CallerFrame(tokens=tokens))
        came = (await self._receive("tokens", STEP_TIMEOUT_S)).tokens
        if len(came.ids) != 1 or came.ids[0] >= self.vocabulary:
            raise violation("a token that is none")
        self._digests.generated(came.ids[0])
        return Token(came.ids[0], came.text)

    async def certify(self, *, completed_at_ms: int) -> Certification:
        """Close the forward: gather what every hop saw, and ask each to attest the whole.

        Raises Inconsistent when the hops contradict each other or the driver.
        """
        evidence = self.evidence(await self.finish(), completed_at_ms=completed_at_ms)
        return await self.ask_to_attest(evidence)

    async def finish(self) -> tuple[Report, ...]:
        """Say that nothing more is to be computed; what each hop says that it saw."""
        await self._send(pb.CallerFrame(finish=pb.SessionFinish()))
        reports = (await self._receive("reports", STEP_TIMEOUT_S)).reports.reports
        self._check_hops([report.hop for report in reports])
        return tuple(
            Report(
                in_digest=report.in_digest,
                out_digest=report.out_digest,
                tokens_generated=report.tokens_generated,
                synthetic=report.synthetic,
            )
            for report in reports
        )

    def evidence(self, reports: Sequence[Report], *, completed_at_ms: int) -> Evidence:
        """The account of this forward. Raises Inconsistent."""
        plan, fingerprint = self._plan, self._caller.fingerprint
        try:
            return make_evidence(
                route_session_id=plan.route_session_id,
                route_epoch=plan.route_epoch,
                model_artifact_digest=fingerprint.model_artifact_digest,
                runtime_recipe_digest=fingerprint.runtime_recipe_digest,
                layer_count=plan.layer_count,
                hops=[hop.to_fact() for hop in plan.hops],
                reports=reports,
                driver=self._digests.seen(is_last=False),
                completed_at_ms=completed_at_ms,
            )
        except ValueError as error:
            raise Inconsistent(str(error)) from error

    async def ask_to_attest(self, evidence: Evidence) -> Certification:
        """Send the account down the route; who attested it, and who did not and why."""
        content = canonical(evidence)
        await self._send(pb.CallerFrame(evidence=pb.Evidence(evidence=content)))
        said = (await self._receive("attestations", ATTEST_TIMEOUT_S)).attestations.attestations
        self._check_hops([attestation.hop for attestation in said])
        return Certification(
            evidence=evidence,
            attestations=tuple(
                HopAttestation(
                    hop=attestation.hop,
                    node=hop.node,
                    attested=attestation.attested,
                    detail=plain(attestation.detail),
                    sequence=attestation.sequence,
                )
                for hop, attestation in zip(self._plan.hops, said, strict=True)
            ),
        )

    def _check_hops(self, hops: list[int]) -> None:
        if hops != list(range(len(self._plan.hops))):
            raise violation(f"hop 0 speaks for hops {hops}, expected those of the route")

    async def _send(self, frame: pb.CallerFrame) -> None:
        with within(STEP_TIMEOUT_S, "room to go on"):
            await self._link.send(frame)

    async def _receive(self, kind: str, timeout_s: float) -> pb.ResponderFrame:
        with within(timeout_s, f"{kind} of hop 0"):
            return await self._link.receive(kind)


@asynccontextmanager
async def open_route(caller: Caller, plan: RoutePlan) -> AsyncIterator[Route]:
    """Open a route from end to end; every hop is ready when it is yielded.

    Raises SessionFailed, which names the hop. At the end, however it comes, all hops free what they
    hold.
    """
    first, *after = plan.hops
    request = Request(
        purpose=plan.purpose,
        route_session_id=plan.route_session_id,
        route_epoch=plan.route_epoch,
        hop=0,
        responder=first,
        after=tuple(after),
    )
    try:
        async with open_link(caller, request, timeout_s=OPEN_TIMEOUT_S) as link:
            with within(OPEN_TIMEOUT_S, "ready of hop 0"):
                frame = await link.receive("ready")
            yield Route(link, plan, caller, frame.ready)
    except SessionFailed as failure:
        if failure.hop is None:
            failure.hop = 0
        raise
