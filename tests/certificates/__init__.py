"""Certificates for tests: two authorities, a valid server and client, and invalid servers and clients.

`make.sh` creates them. Their keys protect nothing.
"""

from __future__ import annotations

import ssl
from pathlib import Path

HERE = Path(__file__).parent
CA, OTHER_CA = HERE / "ca.pem", HERE / "other-ca.pem"
SERVER, SERVER_ELSEWHERE, SERVER_EXPIRED = "server", "server-elsewhere", "server-expired"
ENCRYPTED_KEY = HERE / "client-encrypted.key"  # password "in-a-test"
CLIENT, CLIENT_EXPIRED, CLIENT_OF_OTHER_CA = "client", "client-expired", "client-of-other-ca"


def certificate(name: str) -> Path:
    """Return the path of a certificate."""
    return HERE / f"{name}.pem"


def key(name: str) -> Path:
    """Return the path of the key of a certificate."""
    return HERE / f"{name}.key"


def server_context(name: str = SERVER, *, wants_client: bool = False) -> ssl.SSLContext:
    """Return the context of a server with this certificate, which may require a certificate of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(name), key(name))
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CA)
    return context


def client_context() -> ssl.SSLContext:
    """Return the context of a client that verifies the server and has a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(CA)
    context.load_cert_chain(certificate(CLIENT), key(CLIENT))
    return context
