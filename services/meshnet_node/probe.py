"""The numbers behind a proof: a bounded real forward through exactly the selected layers, judged.

A challenge goes in (`meshnet_node.challenge`): a prompt of `PROMPT` positions, then `STEPS` single ones,
so that a KV cache is written and read. A shard of the whole model is fed the tokens that it chose
itself; a shard that starts at layer 0 challenge ids; any other challenge activations. Two slots do the
same at once, in turns. What comes out is judged here:

- there is as much of it as there should be, and every number is finite;
- at the last layer the token is in the vocabulary, and is the one the logits are for;
- what went in shows in it: logits are not all equal, and what differs as it goes in does not all come
  out the same;
- a layer computes: activations do not come out as they went in;
- both slots give the same bytes, although the other worked beside it;
- what came before shows: the first single position gives something else after another prompt, in a
  third slot. This asks a KV cache for what it is there for, and needs a context of two positions.

It is `failed` when it ran and something is wrong, `error` when it did not run. A backend is somebody
else's code: whatever it raises or returns ends in what is measured. Only what stops the process or the
task (Ctrl-C, cancellation) goes through. Left out: loading, comparing what runs with what the recipe
declares, and the report (`meshnet_node.doctor.proof`).

`output_digest` is SHA-256 over what came out of one slot, in order: activations as they are, or token
ids as u32 little-endian where the shard ends at the last layer.
"""

import hashlib
import logging
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import NamedTuple

from msgspec import Struct

from meshnet_node.backends import LoadedShard, NotFinite, Slot, Step
from meshnet_node.capability import NO_OUTPUT_DIGEST, CapabilityStatus
from meshnet_node.challenge import FLOAT32, Dtype, activations, dtype_of, most_likely, token_ids
from meshnet_node.foreign import fault_text, kind_of, text_of
from meshnet_node.shard_facts import ShardFacts, Unbelievable

PROMPT = 8
STEPS = 4

_log = logging.getLogger(__name__)
_TOKEN_BYTES = 4


class Measured(Struct, frozen=True):
    """What a forward showed. `tokens` counts the positions of one slot, and `duration_ms` is its time.

    `faults` say what is wrong; there are none exactly if `status` is `passed`.
    """

    status: CapabilityStatus
    tokens: int = 0
    duration_ms: int = 0
    output_digest: str = NO_OUTPUT_DIGEST
    faults: tuple[str, ...] = ()


class _Wrong(Exception):
    """It ran, and this is wrong with it."""


def measure(shard: LoadedShard, start: int, end: int, *, recorded: str | None = None) -> Measured:
    """Push the challenge through layers `[start, end)` of `shard` twice and judge what comes out.

    Never raises for what the shard does.
    """
    run: _Run | None = None
    try:
        run = _Run(_Facts.of(shard, start, end))
        run.compute(shard)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - see the module
        _log.debug("the forward", exc_info=error)
        ran = isinstance(error, _Wrong | NotFinite)
        status: CapabilityStatus = "failed" if ran else "error"
        fault = _said(error)
        if run is None:
            return Measured(status, faults=(fault,))
        return Measured(status, run.tokens, run.duration_ms, faults=(fault,))
    digest = run.output_digest
    if recorded not in {None, digest}:
        fault = (
            f"output_digest: found {digest}, expected the recorded {recorded}: other tokens than this "
            "model gives elsewhere"
        )
        return Measured("failed", run.tokens, run.duration_ms, digest, (fault,))
    return Measured("passed", run.tokens, run.duration_ms, digest)


class _Facts(Struct, frozen=True):
    """What is to be computed, from what a shard says of itself."""

    start: int
    end: int
    is_last: bool
    dtype: Dtype
    position_bytes: int
    vocabulary: int
    prompt: int
    steps: int

    @classmethod
    def of(cls, shard: LoadedShard, start: int, end: int) -> "_Facts":
        said = ShardFacts.of(shard)
        if not said.start <= start < end <= said.end <= said.layer_count:
            raise Unbelievable(
                f"layers: found [{said.start}, {said.end}) of {said.layer_count} loaded, expected "
                f"[{start}, {end}) among them"
            )
        dtype = dtype_of(text_of(shard.axes["activation_dtype"]))
        if said.position_bytes % dtype.size:
            raise Unbelievable(
                f"position_bytes: found {said.position_bytes}, expected a multiple of {dtype.size}, the "
                f"size of a {dtype.name}"
            )
        room = said.context_length
        steps = min(STEPS, room - 1)
        return cls(
            start=start,
            end=end,
            is_last=end == said.layer_count,
            dtype=dtype,
            position_bytes=said.position_bytes,
            vocabulary=said.vocabulary,
            prompt=min(PROMPT, room - steps),
            steps=steps,
        )


_Feed = Callable[[Slot], Step]


class _Single(NamedTuple):
    """The first position that went in alone: how it is computed, and what came of it."""

    feed: _Feed
    out: tuple[bytes, bytes]


class _Run:
    """The forward itself: two slots in turns, step by step; then a third for what came before."""

    def __init__(self, facts: _Facts) -> None:
        self.tokens = 0
        """Positions that one slot has computed."""
        self._facts = facts
        self._elapsed_ns = 0
        self._output = hashlib.sha256()
        # digests of positions; at the last layer of those that a token was asked after
        self._went_in: set[bytes] = set()
        self._came_out: set[bytes] = set()
        self._single: _Single | None = None

    @property
    def duration_ms(self) -> int:
        return self._elapsed_ns // 1_000_000

    @property
    def output_digest(self) -> str:
        return self._output.hexdigest()

    def compute(self, shard: LoadedShard) -> None:
        facts = self._facts
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(
                    closing(
                        shard.open(facts.start, facts.end, positions=facts.prompt + facts.steps)
                    )
                )
                for _ in range(2)
            )
            token: int | None = None
            for count in (facts.prompt, *(1 for _ in range(facts.steps))):
                given, feed = self._feed(self.tokens, count, token)
                began = time.perf_counter_ns()
                step = feed(first)
                self._elapsed_ns += time.perf_counter_ns() - began
                out = self._judged(step, self.tokens, count)
                again = self._judged(feed(second), self.tokens, count)
                if self.tokens == facts.prompt:
                    self._single = _Single(feed, out)
                self.tokens += count
                self._output.update(out[0])
                self._note(given, out)
                if again != out:
                    raise _Wrong(
                        f"not deterministic: the same {self.tokens} positions gave other bytes in a "
                        "second slot"
                    )
                for slot in (first, second):
                    if slot.position != self.tokens:
                        raise _Wrong(
                            f"position: found {text_of(slot.position)}, expected {self.tokens}, as many "
                            "as went in"
                        )
                token = step.token
        if len(self._went_in) > 1 and len(self._came_out) == 1:
            raise _Wrong(
                f"constant: {len(self._went_in)} positions that differ gave the same {self._what}, "
                "expected others of each: nothing that goes in shows in what comes out"
            )
        self._compute_after_others(shard)

    def _compute_after_others(self, shard: LoadedShard) -> None:
        """Compute the first single position once more, after another prompt. Raises `_Wrong`."""
        facts = self._facts
        prompt, _ = self._feed(0, facts.prompt, None)
        other, feed_other = self._feed(self.tokens, facts.prompt, None)
        if self._single is None or set(self._split(prompt)) == set(self._split(other)):
            return
        with closing(shard.open(facts.start, facts.end, positions=facts.prompt + 1)) as slot:
            self._judged(feed_other(slot), 0, facts.prompt)
            out = self._judged(self._single.feed(slot), facts.prompt, 1)
        if out == self._single.out:
            raise _Wrong(
                f"history: the same position after {facts.prompt} others gave the same {self._what}, "
                "expected otherwise: nothing that came before shows"
            )

    @property
    def _what(self) -> str:
        return "logits" if self._facts.is_last else "activations"

    def _feed(self, at: int, count: int, token: int | None) -> tuple[bytes, _Feed]:
        """`count` positions of the challenge as bytes, and what to do with a slot to compute them."""
        facts = self._facts
        if facts.start:
            data = activations(facts.dtype, facts.position_bytes, at, count)
            return data, lambda slot: slot.forward_activations(data, sample=facts.is_last)
        ids = token_ids(facts.vocabulary, at, count) if token is None else (token,)
        given = struct.pack(f"<{count}I", *ids)
        return given, lambda slot: slot.forward_tokens(ids, sample=facts.is_last)

    def _note(self, given: bytes, out: tuple[bytes, bytes]) -> None:
        """Keep what tells positions that went in, and what came of them, from others."""
        came, logits = out
        went = self._split(given)
        if self._facts.is_last:
            self._went_in.add(went[-1])
            self._came_out.add(logits)
        elif came == given:
            raise _Wrong(
                "identity: activations came out byte for byte as they went in, expected others: "
                "nothing was computed"
            )
        else:
            self._went_in.update(went)
            self._came_out.update(_positions(came, self._facts.position_bytes))

    def _split(self, given: bytes) -> list[bytes]:
        """Digests of the positions that went in."""
        return _positions(given, self._facts.position_bytes if self._facts.start else _TOKEN_BYTES)

    def _judged(self, step: object, at: int, count: int) -> tuple[bytes, bytes]:
        """What a forward of `count` positions put out, and the digest of the numbers behind it.

        Raises `_Wrong`.
        """
        if not isinstance(step, Step):
            raise _Wrong(f"a forward gave {kind_of(step)}, expected a Step")
        if self._facts.is_last:
            return self._judged_token(step)
        if step.token is not None or step.logits is not None:
            raise _Wrong("a token came out before the last layer; expected activations alone")
        found, wanted = step.activations, count * self._facts.position_bytes
        if type(found) is not bytes or len(found) != wanted:
            size = f"{len(found)} bytes" if type(found) is bytes else kind_of(found)
            raise _Wrong(
                f"activations: found {size} for {count} positions, expected {wanted} bytes"
            )
        width = self._facts.position_bytes // self._facts.dtype.size
        bad = self._facts.dtype.not_finite(found)
        if bad is not None:
            raise _Wrong(
                f"not finite: activations of position {at + bad // width} hold a NaN or an "
                f"infinity at {bad % width}"
            )
        return found, b""

    def _judged_token(self, step: Step) -> tuple[bytes, bytes]:
        token, logits, size = step.token, step.logits, self._facts.vocabulary
        if type(step.activations) is not bytes or step.activations:
            raise _Wrong("activations came out of the last layer; expected a token alone")
        if type(logits) is not memoryview or logits.nbytes != 4 * size:
            found = f"{logits.nbytes} bytes" if type(logits) is memoryview else kind_of(logits)
            raise _Wrong(
                f"logits: found {found}, expected {4 * size} bytes, float32 for {size} tokens"
            )
        numbers = logits.tobytes()
        bad = FLOAT32.not_finite(numbers)
        if bad is not None:
            raise _Wrong(f"not finite: the logit of token {bad} is a NaN or an infinity")
        if type(token) is not int or not 0 <= token < size:
            raise _Wrong(f"token: found {text_of(token)}, expected an id below {size}")
        if size > 1 and numbers == numbers[:4] * size:
            raise _Wrong(f"constant: the logits of all {size} tokens are equal, expected a choice")
        likely = most_likely(numbers)
        if token != likely:
            raise _Wrong(f"token: found {token}, expected {likely}, whose logit is the greatest")
        return struct.pack("<I", token), hashlib.sha256(numbers).digest()


def _positions(data: bytes, size: int) -> list[bytes]:
    """Digests of what `data` holds of each position."""
    return [hashlib.sha256(data[at : at + size]).digest() for at in range(0, len(data), size)]


def _said(error: BaseException) -> str:
    """What is wrong: in our own words, or in those of whatever was raised."""
    return str(error) if isinstance(error, _Wrong | Unbelievable) else fault_text(error)
