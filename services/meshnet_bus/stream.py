"""The realm's one stream: how it must be configured, and creating it.

An ordered, immutable log: records are appended and nothing else ever happens to them. What could
change, hide, reorder or expire a record is off, and `drift` names every member of a configuration
that is not as it should be, known to us or not. How many replicas there are, where they live and
what the stream is called for people change no record and are left to the operator.

`create_realm` makes a realm: the stream, then its first event, expecting the stream to be empty
(`Nats-Expected-Last-Sequence: 0`), before any other account can reach it.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from meshnet_bus.api import API_PREFIX, STREAM_NAME_IN_USE, ApiError, StreamApi
from meshnet_bus.client import SafeClient, Unreachable
from meshnet_events import subjects
from meshnet_events.envelope import SignedEvent
from meshnet_events.record import Record

MAX_MESSAGE = 65_536
"""The server's cap on headers and body together, in bytes."""
_DEDUPLICATION_NS = (
    100_000_000  # the server's least: a header must not make a record vanish for long
)
_LEFT_TO_OPERATOR = frozenset({"num_replicas", "placement", "description", "metadata"})

Config = Mapping[str, object]


class StreamDrift(Exception):
    """The stream exists with another configuration. `differences` names each member."""

    def __init__(self, stream: str, differences: tuple[str, ...]) -> None:
        super().__init__(
            f"{stream} is not configured as a realm's stream: {'; '.join(differences)}. Find out who "
            "changed it before anything is read from or written to it"
        )
        self.differences = differences


class RealmExists(Exception):
    """The realm was created before, by another event."""


class StreamState(Struct, frozen=True):
    """What the stream holds. `created` is the server's text; sequences and counts are of records."""

    created: str
    first_sequence: int
    last_sequence: int
    messages: int
    deleted: int
    lost: int
    config: Config


class CreatedRealm(Struct, frozen=True):
    """The realm's stream and whether this call made it (else it was there, with the same event)."""

    state: StreamState
    is_new: bool


class _Lost(Struct, frozen=True):
    msgs: list[int] | None = None


class _Counts(Struct, frozen=True):
    messages: int
    first_seq: int
    last_seq: int
    num_deleted: int = 0
    lost: _Lost | None = None


class _Info(Struct, frozen=True):
    config: dict[str, object]
    created: str
    counts: _Counts = field(name="state")


def stream_config(realm: str, replicas: int = 1) -> dict[str, object]:
    """Every member of the configuration that is not empty, as the server shows it."""
    return {
        "name": subjects.stream(realm),
        "subjects": [subjects.event(realm, "*")],
        "storage": "file",
        "num_replicas": replicas,
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_bytes": -1,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": MAX_MESSAGE,
        "duplicate_window": _DEDUPLICATION_NS,
        "compression": "none",
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "republish": {
            "src": subjects.event(realm, "*"),
            "dest": subjects.live(realm, "{{wildcard(1)}}"),
        },
    }


def drift(config: Config, realm: str) -> tuple[str, ...]:
    """Name each member that is not as `stream_config` has it: what it is, and what was expected.

    A member unknown to us counts unless it is empty: a later server's feature is off until we know
    it.
    """
    expected = stream_config(realm)
    return tuple(
        f"{member} is {config.get(member)!r}, expected {expected.get(member)!r}"
        for member in sorted({*expected, *config} - _LEFT_TO_OPERATOR)
        if (config.get(member) or None) != (expected.get(member) or None)
    )


async def read_state(api: StreamApi) -> StreamState:
    """Read the stream's state from its leader. Raises `ApiError` when there is no such stream."""
    info = await api.call(f"STREAM.INFO.{api.stream}", None, _Info)
    counts = info.counts
    lost = counts.lost.msgs or () if counts.lost else ()
    return StreamState(
        info.created,
        counts.first_seq,
        counts.last_seq,
        counts.messages,
        counts.num_deleted,
        len(lost),
        info.config,
    )


async def provision(
    nc: SafeClient, realm: str, *, replicas: int = 1, prefix: str = API_PREFIX
) -> StreamState:
    """Create the realm's stream, or find it as it should be; else raise `StreamDrift`."""
    api = StreamApi(nc, realm, prefix=prefix)
    try:
        await api.call(f"STREAM.CREATE.{api.stream}", stream_config(realm, replicas), _Info)
    except ApiError as error:
        if error.err_code != STREAM_NAME_IN_USE:
            raise
    state = await read_state(api)
    differences = drift(state.config, realm)
    if (found := state.config.get("num_replicas")) != replicas:
        differences += (f"num_replicas is {found!r}, expected {replicas!r}",)
    if differences:
        raise StreamDrift(api.stream, differences)
    return state


async def create_realm(
    nc: SafeClient,
    realm: str,
    first: SignedEvent,
    *,
    issuer: str,
    replicas: int = 1,
    prefix: str = API_PREFIX,
) -> CreatedRealm:
    """Provision the stream and append `first`, the signed `realm.created` of `issuer`, at sequence 1.

    Doing it again with the same event changes nothing; a realm that begins with another event
    raises `RealmExists`.
    """
    await provision(nc, realm, replicas=replicas, prefix=prefix)
    api = StreamApi(nc, realm, prefix=prefix)
    is_new = False
    record = await api.leader_record(1)
    if record is None:
        try:
            await api.append(issuer, first.body, headers={"Nats-Expected-Last-Sequence": "0"})
            is_new = True
        except (ApiError, Unreachable):
            # someone was first, or only the acknowledgement was lost: the record tells which
            record = await api.leader_record(1)
            if record is None:
                raise
    if record is not None:
        _check_first(record, first, issuer, realm)
    return CreatedRealm(await read_state(api), is_new)


def _check_first(record: Record, first: SignedEvent, issuer: str, realm: str) -> None:
    if record.subject != subjects.event(realm, issuer) or record.body != first.body:
        raise RealmExists(
            f"realm {realm} exists: its first record is another event, on {record.subject}. "
            "Choose another name, or use the realm as it is"
        )
