"""How a session ends when it does not end well: one exception, and the frame that says the same.

`SessionFailed` is raised where something is found wrong and caught in one place on each side. A
responder turns it into its last frame, a `ShardError`; a caller gets it back from that frame. What a
peer says is for people and nothing else: it is cut short, kept to one line (`plain`), and decides
nothing but whether to try again.
"""

from meshnet_proto import shard_runtime_pb2 as pb

MAX_DETAIL = 512

_RETRYABLE = frozenset(
    (
        pb.ERROR_CODE_HOP_LOST,
        pb.ERROR_CODE_STALE_BOOT,
        pb.ERROR_CODE_TIMED_OUT,
        pb.ERROR_CODE_UNAVAILABLE,
        pb.ERROR_CODE_UNKNOWN_PEER,
    )
)
"""Codes after which the same route, planned anew, may work without anyone doing anything."""


class SessionFailed(Exception):
    """A session was refused or ended. `hop` names the hop that failed, where it is known.

    `responder` is what a responder that refused a fingerprint said of itself, unchecked.
    """

    def __init__(
        self,
        code: "pb.ErrorCode.ValueType",
        detail: str,
        *,
        hop: int | None = None,
        responder: pb.Responder | None = None,
        retryable: bool | None = None,
    ) -> None:
        self.detail = plain(detail)
        super().__init__(self.detail)
        self.code = code
        self.hop = hop
        self.responder = responder
        self.retryable = code in _RETRYABLE if retryable is None else retryable

    @property
    def reason(self) -> str:
        """The code as people read it: `fingerprint-mismatch`."""
        return reason_of(self.code)

    def __str__(self) -> str:
        where = "" if self.hop is None else f"hop {self.hop}: "
        return f"{where}{self.reason}: {self.detail}"

    def seen_from_before(self, hop: int) -> "SessionFailed":
        """The same failure as the hop before passes it on: of `hop`, unless a later one is named.

        A failure of the hop after is no verdict on the two that pass it on, so it keeps its code
        only where it was found and becomes `ERROR_CODE_HOP_LOST` on its way up.
        """
        return SessionFailed(
            pb.ERROR_CODE_HOP_LOST,
            self.detail if self.code == pb.ERROR_CODE_HOP_LOST else f"{self.reason}: {self.detail}",
            hop=hop if self.hop is None else max(hop, self.hop),
            retryable=self.retryable,
        )

    def to_proto(self) -> pb.ShardError:
        """The frame that tells the peer."""
        return pb.ShardError(
            code=self.code,
            detail=self.detail,
            retryable=self.retryable,
            responder=self.responder,
            hop=self.hop,
        )

    @classmethod
    def from_proto(cls, error: pb.ShardError) -> "SessionFailed":
        """What a peer said. An unknown code is `ERROR_CODE_UNSPECIFIED`."""
        known = error.code in pb.ErrorCode.values()
        return cls(
            error.code if known else pb.ERROR_CODE_UNSPECIFIED,
            error.detail or "the peer gave no reason",
            hop=error.hop if error.HasField("hop") else None,
            responder=error.responder if error.HasField("responder") else None,
            retryable=error.retryable,
        )


def plain(text: str) -> str:
    """`text` cut short, on one line, with nothing in it that could steer a terminal or forge a log."""
    cut = text[:MAX_DETAIL]
    if cut.isprintable():
        return cut
    shown = (letter if letter.isprintable() else repr(letter)[1:-1] for letter in cut)
    return "".join(shown)[:MAX_DETAIL]


def reason_of(code: "pb.ErrorCode.ValueType") -> str:
    """A code of the wire as people read it."""
    return pb.ErrorCode.Name(code).removeprefix("ERROR_CODE_").lower().replace("_", "-")


def violation(detail: str) -> SessionFailed:
    """A frame has no place here or is not of its form."""
    return SessionFailed(pb.ERROR_CODE_PROTOCOL_VIOLATION, detail)
