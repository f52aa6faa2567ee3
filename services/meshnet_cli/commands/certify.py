"""`meshnet node certify`: a real forward over a whole route, attested by every node that took part."""

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter, validators
from msgspec import Struct

from meshnet_bus.asker import QueryRefused
from meshnet_bus.client import Unreachable
from meshnet_cli import look
from meshnet_cli.driving import (
    Driven,
    asking,
    check_prompt,
    check_recipe,
    plan_route,
    refused,
)
from meshnet_cli.errors import FAILED, OK, CliError
from meshnet_cli.key_files import read_node_key
from meshnet_cli.lookup import find_node
from meshnet_cli.options import OUTPUT, TLS, WHERE, NodeDir, Output, TlsChoice, Where
from meshnet_cli.output import answer, line, note, pairs, table
from meshnet_cli.profile import settle
from meshnet_cli.progress import progress
from meshnet_cli.publishing import source_of
from meshnet_cli.reaching import read_tls
from meshnet_cli.state_source import load
from meshnet_events.answers import RecipeAnswer
from meshnet_events.forms import MAX_INTEGER, is_key
from meshnet_events.queries import BEHIND, RecipeQuery

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from meshnet_bus.asker import Asker
    from meshnet_node.session.driver import Certification, Route

_CHALLENGE_TOKENS = 12


class Participant(Struct, frozen=True):
    """One hop of the forward, and its word on it."""

    hop: int
    node: str
    label: str
    start: int
    end: int
    attested: bool
    sequence: int
    detail: str


class Forward(Struct, frozen=True):
    """A forward that ran to its end: the token ids that went in and came out, and who attested it."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    certification: "Certification"
    duration_ms: int


class Certified(Struct, frozen=True):
    """What came of a certifying forward: who attested, and what the recipe is now.

    Whoever holds the whole model can compute `token_ids` from `prompt_ids`, and `input_digest` and
    `output_digest` from both (`docs/reference/session.md`).
    """

    recipe_key: str
    recipe_status: str
    why: str
    route_session_id: str
    tokens_generated: int
    duration_ms: int
    input_digest: str
    output_digest: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    seams: tuple[str, ...]
    participants: tuple[Participant, ...]


def certify(
    *,
    recipe: Annotated[str, Parameter(help="8 characters or more of a recipe key.")],
    tokens: Annotated[
        int, Parameter(validator=validators.Number(gte=1, lte=1024), help="How many to generate.")
    ] = 16,
    prompt: Annotated[
        str | None,
        Parameter(help="The text to begin with. Default: a challenge of tokens drawn by chance."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        Parameter(help="A node (label or key) to do without. May be repeated."),
    ] = None,
    directory: NodeDir = None,
    tls: TlsChoice = TLS,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> int:
    """Run a real forward over a whole route, and have every node that took part attest it.

    The tracker plans the route: over several nodes and hosts, as the realm's policy asks, and where it
    can over seams that nobody has proven yet. Tokens are generated from a challenge that nobody could
    know before. Then each node compares the account of it with what it saw itself, its own layers, its
    neighbours, every byte that came in and went out, and publishes its word, or says why not. When all
    have, the recipe leaves the dark.

    Any node of the realm may ask for it. Exit code 1 when the recipe is not certified afterwards.

    ```
    meshnet node certify --recipe 17ae3860
    ```
    """
    recipe = check_recipe(recipe)
    if prompt is not None:
        check_prompt(prompt)
    settings = settle(where)
    key = read_node_key(settings.node_at(directory))
    certificates = read_tls(tls)
    excluded = _keys(exclude or (), where)

    async def run() -> tuple[Driven, Forward, RecipeAnswer]:
        async with asking(settings) as asker:
            driven = await plan_route(
                asker,
                settings.need_realm(),
                recipe,
                "certify",
                key=key,
                exclude=excluded,
                tls=certificates,
            )
            note(_route_text(driven))
            done = await _forward(driven, tokens, prompt)
            return driven, done, await _status_after(asker, driven, done.certification)

    driven, done, after = anyio.run(run)
    document = _document(driven, done, after)
    answer(output, document, lambda screen: _show(screen, document))
    return OK if after.status == "certified" and done.certification.is_complete else FAILED


def _keys(names: Sequence[str], where: Where) -> list[str]:
    """The keys of the nodes that go by these names; the log is asked whose a name is."""
    if all(is_key(name) for name in names):
        return list(names)
    state = load(source_of(where)).state
    return [find_node(state, name).node for name in names]


def _route_text(driven: Driven) -> str:
    hops = (
        f"{driven.name_of(index)} [{hop.start}, {hop.end})"
        for index, hop in enumerate(driven.plan.hops)
    )
    return f"route: {' → '.join(hops)}"


async def _forward(driven: Driven, tokens: int, prompt: str | None) -> Forward:
    from meshnet_node.session.driver import Inconsistent, open_route
    from meshnet_node.session.failure import SessionFailed

    started, out = time.monotonic_ns(), []
    try:
        async with open_route(driven.caller, driven.plan) as route:
            ids = await route.encode(prompt) if prompt is not None else _challenge(route)
            with progress("generating", "tokens") as meter:
                async for token in route.generate(ids, max_tokens=tokens, stop_at_end=False):
                    out.append(token.id)
                    meter(len(out), tokens)
            certification = await route.certify(completed_at_ms=time.time_ns() // 1_000_000)
            duration_ms = (time.monotonic_ns() - started) // 1_000_000
            return Forward(tuple(ids), tuple(out), certification, duration_ms)
    except SessionFailed as failure:
        raise driven.explain(failure) from failure
    except Inconsistent as error:
        raise CliError(
            f"the hops contradict each other: {error}",
            "nothing was attested; a hop that lies, or a broken one, is among them",
        ) from error
    except ValueError as error:
        raise CliError(str(error), "ask for fewer --tokens, or give a shorter --prompt") from error


def _challenge(route: "Route") -> tuple[int, ...]:
    """Token ids that nobody could have prepared for."""
    count = min(_CHALLENGE_TOKENS, max(1, route.max_positions // 2))
    return tuple(secrets.randbelow(route.vocabulary) for _ in range(count))


async def _status_after(asker: "Asker", driven: Driven, done: "Certification") -> RecipeAnswer:
    """What the recipe is, once the tracker has seen every attestation that is stored."""
    key = driven.answer.recipe_key
    # where an attestation is, its node says; one that names a sequence far off keeps nobody waiting
    last = max((one.sequence for one in done.attestations), default=0)
    try:
        try:
            return await asker.ask(RecipeQuery(recipe=key, min_sequence=min(last, MAX_INTEGER)))
        except QueryRefused as refusal:
            if refusal.code != BEHIND:
                raise
            note(f"a tracker has not seen every attestation that a node says it stored: {refusal}")
            return await asker.ask(RecipeQuery(recipe=key))
    except QueryRefused as refusal:
        raise refused(refusal) from refusal
    except Unreachable as error:
        raise CliError(
            f"the forward is over, and no tracker says what came of it: {error}",
            "`meshnet recipe show` tells later",
        ) from error


def _document(driven: Driven, done: Forward, after: RecipeAnswer) -> Certified:
    evidence = done.certification.evidence
    return Certified(
        recipe_key=driven.answer.recipe_key,
        recipe_status=after.status,
        why=after.why,
        route_session_id=evidence.route_session_id,
        tokens_generated=evidence.tokens_generated,
        duration_ms=done.duration_ms,
        input_digest=evidence.input_digest,
        output_digest=evidence.output_digest,
        prompt_ids=done.prompt_ids,
        token_ids=done.token_ids,
        seams=evidence.seams,
        participants=tuple(
            Participant(
                hop=one.hop,
                node=one.node,
                label=driven.answer.hops[one.hop].label,
                start=driven.plan.hops[one.hop].start,
                end=driven.plan.hops[one.hop].end,
                attested=one.attested,
                sequence=one.sequence,
                detail=one.detail,
            )
            for one in done.certification.attestations
        ),
    )


def _word_of(one: Participant) -> "str | Text":
    """What a participant said of the forward."""
    if not one.attested:
        return look.status("refused")
    return f"attested at {one.sequence}" if one.sequence else "attested, not stored yet"


def _show(screen: "Console", document: Certified) -> None:
    rows = table(
        "hop", "node", "layers", "its word", "because", right=["hop"], flexible=["because"]
    )
    for one in document.participants:
        rows.add_row(
            str(one.hop),
            look.one_line(one.label or look.short(one.node)),
            look.layers(one.start, one.end),
            _word_of(one),
            look.one_line(one.detail),
        )
    screen.print(rows)
    pairs(
        screen,
        (
            ("tokens", f"{document.tokens_generated} in {document.duration_ms:,} ms"),
            ("session", document.route_session_id),
            ("recipe", document.recipe_key),
            ("it is", look.status(document.recipe_status)),
        ),
    )
    line(screen, document.why)
