"""Text to token ids and back, for files that hold a SentencePiece vocabulary.

GGUF keeps the pieces of a SentencePiece model, their scores and their types, whose numbers are
SentencePiece's own; from these the model is put together again and the sentencepiece library does
the rest. `tokenizer.ggml.model` calls that kind `llama`: byte-pair merges by score, no
normalization, bytes for what no piece covers.

Rules

- What a prompt says is text: a control token spelled out in it (`<end_of_turn>`) becomes the pieces
  of these letters, never the token.
- A text opens with the file's opening token where the file says so (`add_bos_token`).
- A vocabulary of another kind is no fault of the file: token ids work, text is `NoTokenizer`.
"""

from typing import TYPE_CHECKING

import numpy as np

from meshnet_node.backends import BackendError, NoTokenizer
from meshnet_node.backends.reference.keys import flag, numbers, texts
from meshnet_node.pin.gguf_file import GgufFile

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_MODEL = "tokenizer.ggml.model"
_TOKENS = "tokenizer.ggml.tokens"
_SCORES = "tokenizer.ggml.scores"
_TYPES = "tokenizer.ggml.token_type"
_UNKNOWN_TYPE, _USER_DEFINED_TYPE = 2, 4
_TYPE_NUMBERS = range(1, 7)  # normal, unknown, control, user defined, unused, byte
_META = "▁"


class Tokenizer:
    """The tokenizer of one file."""

    def __init__(self, processor: "SentencePieceProcessor", opening: int | None) -> None:
        self._processor = processor
        self._opening = () if opening is None else (opening,)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids, with the opening one. Raises ValueError for half a surrogate pair."""
        # Bytes, so that what is no text is Python's error and not the library's.
        return (*self._opening, *self._processor.encode(text.encode()))

    def decode(self, token: int) -> bytes:
        """The bytes of one token of the vocabulary; none for one that stands for no text."""
        processor = self._processor
        piece: str = processor.id_to_piece(token)
        if processor.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        if processor.is_control(token) or processor.is_unknown(token) or processor.is_unused(token):
            return b""
        return piece.replace(_META, " ").encode()


def read_tokenizer(file: GgufFile, vocabulary: int) -> Tokenizer:
    """Build the tokenizer. Raises `NoTokenizer` where the file holds none that is known here."""
    kind = file.text(_MODEL)
    if kind != "llama":
        found = "no tokenizer" if kind is None else f"a tokenizer of the kind {kind[:40]!a}"
        raise NoTokenizer(
            f"{file.path}: it holds {found}; only SentencePiece's ('llama') is known here. Give "
            "token ids instead of text"
        )
    try:
        return _build(file, vocabulary)
    except BackendError as error:
        raise NoTokenizer(f"{error} (token ids work all the same)") from error


def read_end_tokens(file: GgufFile, vocabulary: int) -> frozenset[int]:
    """The ids after which a text, or a turn of it, is over."""
    ids = (_special(file, name, vocabulary) for name in ("eos", "eot"))
    return frozenset(token for token in ids if token is not None)


def _special(file: GgufFile, name: str, vocabulary: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token = file.integer(key)
    if token is not None and not 0 <= token < vocabulary:
        raise BackendError(
            f"{file.path}: {key} is {token}, there are {vocabulary} tokens; convert the model again"
        )
    return token


def _build(file: GgufFile, vocabulary: int) -> Tokenizer:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise BackendError(
            "text needs sentencepiece; in the checkout: pip install -e '.[reference]'"
        ) from error
    opening = _special(file, "bos", vocabulary)
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(_model(file, vocabulary))
    except RuntimeError as error:
        raise BackendError(f"{file.path}: sentencepiece refuses its vocabulary: {error}") from error
    adds = flag(file, "tokenizer.ggml.add_bos_token", default=True)
    return Tokenizer(processor, opening if adds else None)


def _model(file: GgufFile, vocabulary: int) -> bytes:
    # The module makes its classes when it is imported; no checker sees them.
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    pieces, scores, types = texts(file, _TOKENS), numbers(file, _SCORES), numbers(file, _TYPES)
    if pieces is None or scores is None or types is None:
        raise BackendError(f"{file.path}: it lacks one of {_TOKENS}, {_SCORES} and {_TYPES}")
    if not len(pieces) == len(scores) == len(types) == vocabulary:
        raise BackendError(
            f"{file.path}: {len(pieces)} tokens, {len(scores)} scores and {len(types)} types for a "
            f"vocabulary of {vocabulary}"
        )
    if not np.isfinite(scores.astype(np.float64)).all():
        raise BackendError(f"{file.path}: {_SCORES} are not all numbers")
    kinds: list[int] = types.tolist()
    if any(kind not in _TYPE_NUMBERS for kind in kinds):
        raise BackendError(f"{file.path}: {_TYPES} are not all of 1 to 6")
    unknown = _special(file, "unknown", vocabulary)
    if unknown is not None:
        # Converters mark it as a control token; a vocabulary without bytes has to have one.
        kinds[unknown] = _UNKNOWN_TYPE
    model = ModelProto()
    for piece, score, kind in zip(pieces, scores.tolist(), kinds, strict=True):
        # Converters write spaces out in tokens that users define, and in no others.
        spelled = piece.replace(" ", _META) if kind == _USER_DEFINED_TYPE else piece
        model.pieces.add(piece=spelled, score=score, type=kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = trainer.BPE
    trainer.vocab_size = vocabulary
    trainer.byte_fallback = "<0x00>" in pieces
    for name, field in (("unknown", "unk_id"), ("bos", "bos_id"), ("eos", "eos_id")):
        token = _special(file, name, vocabulary)
        setattr(trainer, field, -1 if token is None else token)
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = flag(file, "tokenizer.ggml.add_space_prefix", default=True)
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    serialized: bytes = model.SerializeToString()
    return serialized
