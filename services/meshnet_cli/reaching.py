"""How a node is reached, as its owner types it: the endpoint, where that arrives here, certificates.

All of it is looked at before anything is loaded, so that a slip of the finger costs no minutes. Each
`CliError` names the option. Who may reach a node, its sessions decide.
"""

import errno
import socket
import ssl

from meshnet_cli.errors import USAGE, CliError
from meshnet_cli.options import TlsChoice
from meshnet_node.session.transport import Endpoint, Tls, TlsFiles, default_listen

_TLS_OPTIONS = "--tls-authority, --tls-certificate and --tls-key"


def parse_endpoint(text: str) -> Endpoint:
    """What `--endpoint` names. Raises `CliError` (usage)."""
    try:
        endpoint = Endpoint.parse(text)
    except ValueError as error:
        raise CliError(f"--endpoint: {error}", "nothing was published", code=USAGE) from None
    if endpoint.is_unspecified:
        raise CliError(
            f"--endpoint: {text} is every address of this machine and none that peers could reach",
            f"name the address that peers see, and --listen {endpoint.target}",
            code=USAGE,
        )
    return endpoint


def check_reached(endpoint: Endpoint, listen: str | None, tls: Tls | None) -> None:
    """See that this process could answer at `endpoint`: it has a certificate, and the port is free.

    Raises `CliError`.
    """
    if endpoint.secure and tls is None:
        raise CliError(
            f"--endpoint: grpcs://{endpoint.target} is mutual TLS, and no certificate is named",
            f"name {_TLS_OPTIONS}, or an endpoint of grpc://",
            code=USAGE,
        )
    if listen is None:
        _check_free(default_listen(endpoint), "--endpoint")
    else:
        _check_free(listen, "--listen")


def read_tls(choice: TlsChoice) -> Tls | None:
    """The certificates that were named; None when none were.

    Raises `CliError` for some of three and for what is no certificate and its key; OSError for a file
    that cannot be read.
    """
    authority, certificate, key = choice.tls_authority, choice.tls_certificate, choice.tls_key
    if authority is None or certificate is None or key is None:
        if any(file is not None for file in (authority, certificate, key)):
            raise CliError(
                "TLS needs three files and some are not named", f"name {_TLS_OPTIONS}", code=USAGE
            )
        return None
    tls = Tls.read(TlsFiles(authority, certificate, key))
    # gRPC says nothing of files that it cannot use until a peer comes, and then not which
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cafile=authority)
    except ssl.SSLError as error:
        raise CliError(
            f"--tls-authority: {authority} holds no certificate: {_reason(error)}",
            "expected the authority's certificate, in PEM",
        ) from None
    try:
        context.load_cert_chain(certificate, key, password="")  # and no question for one
    except ssl.SSLError as error:
        raise CliError(
            f"--tls-certificate {certificate} and --tls-key {key} do not go together: "
            f"{_reason(error)}",
            "expected this side's certificate and its own key, both in PEM and not encrypted",
        ) from None
    return tls


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _check_free(where: str, option: str) -> None:
    """Raise `CliError` for an address that cannot be listened at. What is unclear, gRPC finds out."""
    try:
        address = Endpoint.parse(f"grpc://{where}")
    except ValueError:
        raise CliError(
            f"{option}: not an address to listen at: {where[:80]!r}",
            "expected host:port, like 127.0.0.1:7001 or [::]:7001, the port from 1 to 65535",
            code=USAGE,
        ) from None
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        if not isinstance(error, socket.gaierror) and error.errno not in _CERTAIN:
            return
        raise CliError(
            f"{option}: {where} cannot be listened at: {error.strerror or error}",
            "is another process there, and is it an address of this machine? --listen names another",
        ) from error


_CERTAIN = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
