"""gRPC as sessions use it: endpoints, TLS, and the options of channels and servers.

    grpc://host:port     plain, for networks that are trusted for other reasons
    grpcs://host:port    mutual TLS: both sides show a certificate of one authority

TLS protects what passes between two hops; who a peer is, its session proof says. So certificates are
the operator's own matter, and any that the realm's authority signed will do.
"""

import ipaddress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct

from meshnet_events.forms import is_endpoint
from meshnet_node.files import read_file
from meshnet_proto import shard_runtime_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["ShardRuntime"].full_name
METHOD = f"/{SERVICE}/Session"

MAX_FRAME_BYTES = 8 * 1024 * 1024
"""Most bytes of one frame; more ends the stream before it is read."""
MAX_FRAME_DATA_BYTES = 4 * 1024 * 1024
"""Most bytes of activations in one frame: half a frame, so that the rest always fits."""
MAX_SMALL_FRAME_BYTES = 512 * 1024
"""Most bytes of a frame without activations, as anyone may send it.

A frame of empty members takes fifty times its size once it is read, so only neighbours, who are nodes
of the realm, may send larger ones.
"""
MAX_ANSWER_BYTES = 1024 * 1024
"""Most bytes of a responder's frame: the ids of the longest prompt, and nothing ever larger."""

_PEM = "certificate or key in PEM"
_MAX_PEM_BYTES = 1024 * 1024
_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    # a peer that is paused or cut off answers no ping: its sessions end within seconds
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS = (
    *_OPTIONS,
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # names are resolved by the system, and no proxy of the environment is asked
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.max_concurrent_streams", 256),
    # a second server on a taken port is an error, not a silent share
    ("grpc.so_reuseport", 0),
)


class TlsFiles(Struct, frozen=True):
    """PEM files: the authority that peers must be signed by, and our certificate with its key."""

    authority: Path
    certificate: Path
    key: Path


class Tls(Struct, frozen=True):
    """The contents of `TlsFiles`."""

    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, files: TlsFiles) -> "Tls":
        """Read the files. Raises OSError."""
        return cls(
            authority=read_file(files.authority, _PEM, most_bytes=_MAX_PEM_BYTES),
            certificate=read_file(files.certificate, _PEM, most_bytes=_MAX_PEM_BYTES),
            key=read_file(files.key, _PEM, most_bytes=_MAX_PEM_BYTES),
        )

    def for_server(self) -> grpc.ServerCredentials:
        """Credentials of a server that asks every caller for its certificate."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], self.authority, require_client_auth=True
        )

    def for_channel(self) -> grpc.ChannelCredentials:
        """Credentials of a caller."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)

    def __repr__(self) -> str:
        return "Tls(…)"


class Endpoint(Struct, frozen=True):
    """Where a node is reached."""

    host: str
    port: int
    secure: bool

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Read `grpc://host:port` or `grpcs://host:port`. Raises ValueError."""
        if not is_endpoint(text):
            raise ValueError(
                f"not an endpoint: {text[:80]!r}; expected grpc://host:port or grpcs://host:port"
            )
        scheme, _, rest = text.partition("://")
        host, _, port = rest.rpartition(":")
        if not 0 < int(port) < 65_536:
            raise ValueError(f"not an endpoint: port {port}; expected 1 to 65535")
        return cls(host.strip("[]"), int(port), secure=scheme == "grpcs")

    @property
    def target(self) -> str:
        """The endpoint as gRPC spells it."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_unspecified(self) -> bool:
        """Whether it is every address of a machine: one to listen at, and none to reach."""
        address = _address(self.host)
        return address is not None and address.is_unspecified

    @property
    def is_loopback(self) -> bool:
        """Whether only the machine itself reaches it."""
        address = _address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback


def open_channel(endpoint: Endpoint, tls: Tls | None) -> grpc.aio.Channel:
    """A channel to `endpoint`; nothing is sent yet.

    Raises ValueError for a secure endpoint when we have no certificate.
    """
    if not endpoint.secure:
        return grpc.aio.insecure_channel(endpoint.target, options=CHANNEL_OPTIONS)
    if tls is None:
        raise ValueError(
            f"grpcs://{endpoint.target} asks for a certificate and this side has none; name its "
            "files, or use an endpoint of grpc://"
        )
    return grpc.aio.secure_channel(endpoint.target, tls.for_channel(), options=CHANNEL_OPTIONS)


def default_listen(endpoint: Endpoint) -> str:
    """The address to listen on for an endpoint: itself if it is an address, else all of them."""
    if _address(endpoint.host) is None and endpoint.host != "localhost":
        return f"[::]:{endpoint.port}"
    return endpoint.target


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` is; None when it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
