"""`meshnet generate`: a user's text, over a route of shards that is certified."""

import codecs
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
from cyclopts import Parameter, validators
from msgspec import Struct

from meshnet_cli.driving import Driven, asking, check_prompt, check_recipe, plan_route
from meshnet_cli.errors import CliError
from meshnet_cli.look import printable
from meshnet_cli.options import OUTPUT, TLS, WHERE, Output, TlsChoice, Where
from meshnet_cli.output import answer, note
from meshnet_cli.profile import Settings, settle
from meshnet_cli.progress import patience
from meshnet_cli.reaching import read_tls
from meshnet_events.keys import EventKey

if TYPE_CHECKING:
    from meshnet_node.session.transport import Tls

_MOST_LEFT_OUT = 2


Stopped = Literal["end", "tokens", "context"]


class Generated(Struct, frozen=True):
    """What came out, over which nodes, and why no more did.

    `stopped` is `end` where the model ended the text, `tokens` where as many came as were asked for,
    and `context` where the route has no room for another.
    """

    recipe_key: str
    prompt: str
    text: str
    token_ids: tuple[int, ...]
    nodes: tuple[str, ...]
    duration_ms: int
    stopped: Stopped


def generate(
    prompt: Annotated[str, Parameter(help="The text to go on with.")],
    /,
    *,
    recipe: Annotated[str, Parameter(help="8 characters or more of a recipe key.")],
    tokens: Annotated[
        int, Parameter(validator=validators.Number(gte=1, lte=4096), help="At most so many.")
    ] = 64,
    tls: TlsChoice = TLS,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> None:
    """Go on with a text, over a route of shards whose recipe is certified.

    A tracker plans the route; the first node turns the text into tokens, each computes its layers, and
    what comes out of the last is printed as it comes. Only a certified recipe serves: a dark one is
    refused, by the tracker and by every node. A hop that fails before the first token is left out and
    another route tried.

    ```
    meshnet generate --recipe 17ae3860 "The capital of France is"
    ```
    """
    recipe = check_recipe(recipe)
    check_prompt(prompt)
    settings, certificates = settle(where), read_tls(tls)
    shown = _Shown(is_live=output.format == "table")
    try:
        document = anyio.run(_generate, settings, recipe, prompt, tokens, certificates, shown)
    finally:
        shown.end()
    answer(output, document, lambda _screen: None)
    if document.stopped == "context":
        note("it stopped because the route's context is full: the model had not ended the text")


class _Shown:
    """The text as it comes. What others wrote cannot steer the terminal."""

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_over = False
        self.text = ""

    def add(self, piece: bytes) -> None:
        """Add what a token adds."""
        self._write(self._decoder.decode(piece))

    def end(self) -> None:
        """Nothing more comes: whatever is said next begins on a line of its own."""
        if self._is_over:
            return
        self._is_over = True
        self._write(self._decoder.decode(b"", final=True))
        if self._is_live and self.text:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _write(self, text: str) -> None:
        self.text += text
        if self._is_live and text:
            sys.stdout.write(printable(text))
            sys.stdout.flush()


async def _generate(
    settings: Settings,
    recipe: str,
    prompt: str,
    tokens: int,
    tls: "Tls | None",
    shown: _Shown,
) -> Generated:
    from meshnet_node.session.failure import SessionFailed

    key = EventKey(os.urandom(32))  # nobody's: a user is known to no realm
    left_out: set[str] = set()
    async with asking(settings) as asker:
        while True:
            driven = await plan_route(
                asker, settings.need_realm(), recipe, "serve", key=key, lost=left_out, tls=tls
            )
            try:
                return await _over(driven, prompt, tokens, shown)
            except SessionFailed as failure:
                lost = driven.node_at(failure.hop)
                is_last = len(left_out) == _MOST_LEFT_OUT
                if shown.text or is_last or not failure.retryable or lost is None:
                    raise driven.explain(failure) from failure
                left_out.add(lost)
                note(f"{driven.explain(failure)}; trying without it")
            except ValueError as error:
                raise CliError(
                    str(error), "ask for fewer --tokens, or give a shorter prompt"
                ) from error


async def _over(driven: Driven, prompt: str, tokens: int, shown: _Shown) -> Generated:
    from meshnet_node.session.driver import open_route

    started = time.monotonic_ns()
    ids: list[int] = []
    with patience(f"waiting for {driven.name_of(0)} and the hops after it …") as came:
        async with open_route(driven.caller, driven.plan) as route:
            encoded = await route.encode(prompt)
            room = max(1, route.max_positions - len(encoded) + 1)
            async for token in route.generate(encoded, max_tokens=min(tokens, room)):
                came()
                ids.append(token.id)
                shown.add(token.text)
    shown.end()
    stopped: Stopped = "tokens" if len(ids) == tokens else "context" if len(ids) == room else "end"
    return Generated(
        recipe_key=driven.answer.recipe_key,
        prompt=prompt,
        text=shown.text,
        token_ids=tuple(ids),
        nodes=tuple(hop.node for hop in driven.plan.hops),
        duration_ms=(time.monotonic_ns() - started) // 1_000_000,
        stopped=stopped,
    )
