"""Asking the trackers of a realm (`meshnet_events.queries`); `service` is the other end.

    asker = Asker(nc, "lab")
    claim = await asker.ask(ClaimQuery(node="U…", shard_id="main"))

Whoever answers may be hostile: an answer is bounded and typed, and what is no answer counts as none.
It is no evidence either. The one answer by which a node decides what to sign next is the head of its
own chain (`ask_head`), and `place` believes no more of that than a signature proves.
"""

from nats.errors import Error as NatsError

from meshnet_bus.client import SafeClient, Unreachable
from meshnet_bus.place import AskHead
from meshnet_events import queries, subjects
from meshnet_events.answers import AnswerType
from meshnet_events.queries import NOT_FOUND, HeadQuery, Query

ASK_TIMEOUT_S = 10.0


class QueryRefused(Exception):
    """A tracker answered with an error: `code` is a key of `queries.QUERY_ERRORS`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Asker:
    """Asks the trackers of one realm."""

    def __init__(self, nc: SafeClient, realm: str, *, timeout_s: float = ASK_TIMEOUT_S) -> None:
        """`timeout_s` is for each question. Raise ValueError when `realm` is no realm's name."""
        self._nc = nc
        self._realm = subjects.check_realm(realm)
        self._timeout_s = timeout_s

    async def ask(self, query: Query[AnswerType]) -> AnswerType:
        """The answer of whichever tracker is free.

        Raises `QueryRefused` when that is an error, and `Unreachable` when nobody answers in time, or
        with anything but an answer: ask again.
        """
        subject = subjects.query(self._realm, queries.name_of(query))
        # nats-py would keep the request and send it whenever the connection comes back
        if not self._nc.is_connected:
            raise Unreachable(f"{subject}: not connected; check that the server runs")
        try:
            message = await self._nc.request(
                subject, queries.encode(query), timeout=self._timeout_s
            )
        except (TimeoutError, NatsError, OSError) as error:
            raise Unreachable(
                f"no tracker of {self._realm} answered {subject} within {self._timeout_s:g} s "
                f"({error or repr(error)}); check that one runs"
            ) from error
        reply = queries.decode_reply(query, message.data)
        if isinstance(reply, str):
            raise Unreachable(
                f"{subject}: what came back is no answer: {reply} (it begins {message.data[:80]!r}); "
                "expected what docs/reference/queries.md describes"
            )
        if reply.error is not None:
            raise QueryRefused(reply.error.code, reply.error.detail)
        if reply.answer is None:
            raise RuntimeError("a reply that was read has one of the two")
        return reply.answer


def ask_head(asker: Asker, node: str) -> AskHead:
    """What an outbox or a publisher of `node` asks for its place with."""

    async def ask(sequence: int) -> bytes | None:
        try:
            head = await asker.ask(HeadQuery(node=node, min_sequence=sequence))
        except QueryRefused as refused:
            if refused.code == NOT_FOUND:
                return None
            raise Unreachable(
                f"no tracker tells where the chain of {node} stands: {refused}"
            ) from refused
        return bytes(head.body)

    return ask
