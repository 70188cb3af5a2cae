"""TLS for RocketMQ clients: trusted certificates, the client's own certificate, and explanations of failures.

Name servers and brokers use the same port for TLS and plain connections. The server's `tls.server.mode` selects which
of them it accepts, and it closes other connections without an error.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqd.clock import Clock
from rmqd.codes import RequestCode
from rmqd.errors import TlsFileError
from rmqd.wire.command import encode_request

if TYPE_CHECKING:
    from rmqd.client.options import TlsOptions

PROBE_SECONDS: Final = 2.0

_NOT_TLS: Final = "it answers without TLS; set client.tls.enabled: false, or tls.server.mode=permissive there"
_TLS_ONLY: Final = "it accepts only TLS; set client.tls.enabled: true"
_NO_CERTIFICATE: Final = "it requires a client certificate; set client.tls.cert_file and key_file"
_REFUSED_OURS: Final = "it does not accept the certificate in client.tls.cert_file"
# OpenSSL's reasons for its errors, and the peer's alerts, by a part of their text. The first match counts.
_REASONS: Final = (
    ("WRONG_VERSION_NUMBER", _NOT_TLS),
    ("HTTP_REQUEST", _NOT_TLS),
    ("PACKET_LENGTH_TOO_LONG", _NOT_TLS),
    ("RECORD_LAYER_FAILURE", _NOT_TLS),
    ("CERTIFICATE_REQUIRED", _NO_CERTIFICATE),
    ("ALERT_CERTIFICATE_EXPIRED", f"{_REFUSED_OURS}: it has expired"),
    ("ALERT_CERTIFICATE_REVOKED", f"{_REFUSED_OURS}: it was revoked"),
    ("ALERT_UNKNOWN_CA", f"{_REFUSED_OURS}: it does not know the signing authority"),
    ("ALERT_CERTIFICATE_UNKNOWN", _REFUSED_OURS),
    ("ALERT_BAD_CERTIFICATE", _REFUSED_OURS),
    ("ALERT_UNSUPPORTED_CERTIFICATE", _REFUSED_OURS),
    ("ALERT_HANDSHAKE_FAILURE", "it ends the handshake; it may require a client certificate (client.tls.cert_file)"),
    (
        "ALERT_INTERNAL_ERROR",
        "it fails in the handshake; it may not know the authority that signed client.tls.cert_file",
    ),
    ("PROTOCOL_VERSION", "it does not support TLS 1.2 or later, which rmqd requires"),
    ("UNSUPPORTED_PROTOCOL", "it does not support TLS 1.2 or later, which rmqd requires"),
)
_EXPIRED, _NOT_YET, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's X509_V_ERR_*


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """Return the SSL context of connections: TLS 1.2 or later; checks certificate and host name if `options.verify`.

    Reads the files. Raises TlsFileError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.ca_file:
        try:
            context.load_verify_locations(options.ca_file)
        except OSError as error:  # includes SSLError
            raise _file_error("ca_file", options.ca_file, "certificates in PEM", error) from None
    elif options.verify:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if options.cert_file:
        _load_own(context, options)
    return context


def file_problems(options: TlsOptions) -> list[TlsFileError]:
    """Return the errors in the authorities' file, and in the client's certificate and key, checked separately."""
    problems = []
    # only configured files, because reading the system's authorities takes 50 ms
    parts = [replace(options, cert_file="", key_file="")] if options.ca_file else []
    parts += [replace(options, ca_file="", verify=False)] if options.cert_file else []
    for part in parts:
        try:
            client_context(part)
        except TlsFileError as error:
            problems.append(error)
    return problems


def _load_own(context: ssl.SSLContext, options: TlsOptions) -> None:
    _readable("cert_file", options.cert_file)
    key = _readable("key_file", options.key_file)
    encrypted = b"BEGIN ENCRYPTED PRIVATE KEY" in key or b"Proc-Type: 4,ENCRYPTED" in key
    if encrypted and not options.key_password:
        raise TlsFileError("key_file", f"the key in {options.key_file} is encrypted; set client.tls.key_password")
    try:
        # always give a password, even an empty one; otherwise OpenSSL asks on the terminal
        context.load_cert_chain(options.cert_file, options.key_file, password=options.key_password)
    except OSError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            message = f"the key in {options.key_file} does not belong to the certificate in {options.cert_file}"
            raise TlsFileError("key_file", message) from None
        if b"-----BEGIN CERTIFICATE-----" not in _readable("cert_file", options.cert_file):
            raise _file_error("cert_file", options.cert_file, "a certificate in PEM", error) from None
        if encrypted:
            message = f"the key in {options.key_file} cannot be decrypted with client.tls.key_password"
            raise TlsFileError("key_file", message) from None
        raise _file_error("key_file", options.key_file, "a key in PEM", error) from None


def _readable(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _file_error(key, path, "", error) from None


def _file_error(key: str, path: str, content: str, error: OSError) -> TlsFileError:
    if isinstance(error, ssl.SSLError):
        return TlsFileError(key, f"the file {path} does not hold {content}")
    return TlsFileError(key, f"the file {path} cannot be read: {os.strerror(error.errno) if error.errno else error}")


def explain(error: BaseException, server_name: str, *, shows_one: bool = True) -> str | None:
    """Explain a failed handshake, or the end of a connection, as a TLS problem; None if it is not known to be one.

    `shows_one`: whether the client presents a certificate. Old servers call a missing one "bad certificate".
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_verification(error, server_name)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    text = next((text for words, text in _REASONS if words in reason), f"TLS failed: {reason or error}")
    return text if shows_one or not text.startswith(_REFUSED_OURS) else _NO_CERTIFICATE


def _explain_verification(error: ssl.SSLCertVerificationError, server_name: str) -> str:
    if error.verify_code == _EXPIRED:
        return "the server's certificate has expired"
    if error.verify_code == _NOT_YET:
        return "the server's certificate is not valid yet, or the clock here is wrong"
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        return f"the server's certificate is not for {server_name}; client.tls.server_name can name another host"
    return (
        f"no trusted authority signed the server's certificate ({error.verify_message}); "
        "name the authority that signed it in client.tls.ca_file"
    )


async def why_closed(
    host: str, port: int, context: ssl.SSLContext | None, server_name: str, clock: Clock, *, shows_one: bool = True
) -> str | None:
    """Find out why a server closed a connection, with or without TLS (`context`), before it had answered anything.

    Connects again in the other way: with TLS if it was without, and the reverse. Returns None if the reason stays
    unknown. Raises nothing.
    """
    try:
        async with clock.timeout(PROBE_SECONDS):
            if context is None:
                return _TLS_ONLY if await _speaks_tls(host, port) else None
            if await _answers_in_plain(host, port):
                return _NOT_TLS
            error = await _objection(host, port, context, server_name)
            return None if error is None else explain(error, server_name, shows_one=shows_one)
    except (OSError, TimeoutError, ValueError):
        return None


async def _objection(host: str, port: int, context: ssl.SSLContext, server_name: str) -> ssl.SSLError | None:
    """Return the server's alert about our certificate, which follows the handshake. Sends nothing: a request to a
    closing server causes a reset, which overtakes the alert."""
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=server_name)
        try:
            await reader.read(1)
        finally:
            writer.transport.abort()
    except ssl.SSLError as error:
        return error
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it speaks TLS, and rejects us
    writer.transport.abort()
    return True


async def _answers_in_plain(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # name servers answer this request; brokers answer that they do not support it
        writer.write(encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "TBW102"}))
        first = await reader.read(1)
        return first in (b"\x00", b"\x01")  # the first byte of a length up to 16 MiB
    except ConnectionError:  # bytes that it had not read when it closed cause a reset, which overtakes its response
        return False
    finally:
        writer.transport.abort()
