"""Certificates for tests: two authorities, a server on this machine, servers and clients that something is wrong with.

`make.sh` makes them; their keys protect nothing.
"""

from __future__ import annotations

import ssl
from pathlib import Path

HERE = Path(__file__).parent
CA, OTHER_CA = HERE / "ca.pem", HERE / "other-ca.pem"
SERVER, SERVER_ELSEWHERE, SERVER_EXPIRED = "server", "server-elsewhere", "server-expired"
ENCRYPTED_KEY = HERE / "client-encrypted.key"  # by "in-a-test"
CLIENT, CLIENT_EXPIRED, CLIENT_OF_OTHER_CA = "client", "client-expired", "client-of-other-ca"


def certificate(name: str) -> Path:
    """The certificate of this name."""
    return HERE / f"{name}.pem"


def key(name: str) -> Path:
    """The key that belongs to the certificate of this name."""
    return HERE / f"{name}.key"


def server_context(name: str = SERVER, *, wants_client: bool = False) -> ssl.SSLContext:
    """For a server that shows the certificate of this name, and may want one of the client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(name), key(name))
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CA)
    return context


def client_context() -> ssl.SSLContext:
    """For a client that checks the server and shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(CA)
    context.load_cert_chain(certificate(CLIENT), key(CLIENT))
    return context
