"""The client's access keys and TLS settings, and the refusals of name servers and brokers.

Keys and certificates can be changed while the client runs: later requests are signed with the new keys, and new
connections use the new certificates.

A refusal is a response in which a server denies access, or the rejection of a certificate by client or server. rmqd
repeats refused requests within seconds, for many queues at once. So Refusals logs all current refusals in one line,
once a minute, and their errors have `is_reported` set, so that callers do not log them. Refusals of an identity (keys,
certificates) concern every request to that server; other refusals concern one topic or group.

Name servers and brokers use one port for connections with and without TLS. The server's setting `tls.server.mode`
selects which kinds the server accepts. The server closes other connections without an error response.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from rmqd.client.client_options import ClientOptions, TlsOptions
from rmqd.codes import RequestCode
from rmqd.errors import TlsFileError
from rmqd.errors.broker_errors import AccessRefusal, AccessRefusedError
from rmqd.runtime.clock import Clock
from rmqd.wire.acl import Credentials
from rmqd.wire.command import RemotingCommand, encode_request
from rmqd.wire.topics import TOOLS_GROUP

log = structlog.get_logger(__name__)

LOG_INTERVAL_SECONDS: Final = 60.0
MAX_LOGGED_REASONS: Final = 3  # reasons in one log line
# rmqd repeats refused requests within seconds, and requests for routes within half a minute. So if a refusal was not
# repeated for this time, it has ended, or its broker is not used any more.
FORGET_TRUST_REFUSAL_SECONDS: Final = 70.0
FORGET_PERMISSION_REFUSAL_SECONDS: Final = 25.0
# The requests that consuming needs. A refusal of any other request is not recorded, because rmqd works without it.
ESSENTIAL_REQUESTS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.HEART_BEAT,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)


class Refusals:
    """The requests that servers refuse now, logged once a minute. Access keys in servers' texts are replaced by ***."""

    def __init__(self, clock: Clock) -> None:
        self.current: dict[tuple[str, str], tuple[bool, float]] = {}
        """By (address, reason): whether a refusal concerns all the address's requests, and its last monotonic time."""
        self.secret_pattern: re.Pattern[str] | None = None
        """The pattern of present and previous keys, to replace them by *** in servers' texts; None without keys."""
        self.version = 0
        """A number that increases when keys or certificates change. `judge` ignores responses to older requests."""
        self._now = clock.monotonic
        self._reported_at = float("-inf")

    def reason_for_group(self, names: Iterable[str]) -> str | None:
        """Return the reason of a refusal that stops a group, or None. `names` has the group's name and its topics."""
        if not self.current:
            return None
        self._forget_old()
        named = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names))
        found = [reason for (_, reason), (is_trust, _) in self.current.items() if is_trust or named.search(reason)]
        return found[0] if found else None

    def current_reasons(self) -> tuple[str, ...]:
        """Return the reasons of all current refusals, each once."""
        self._forget_old()
        return tuple(dict.fromkeys(reason for _, reason in self.current))

    def record_response(self, address: str, request_code: int, version: int, answer: RemotingCommand) -> None:
        """If a response is a refusal, record it. Otherwise, record that the server trusts this client.

        Called for responses with an error code; while there are refusals, for all responses. `version` is
        `self.version` at the time of the request.
        """
        if answer.remark and self.secret_pattern is not None:
            answer.remark = self.secret_pattern.sub("***", answer.remark)
        if version != self.version:
            return
        refusal = AccessRefusal.of(answer.code, answer.remark) if answer.code and answer.remark else None
        if refusal is None:
            self.trusted(address)
        elif refusal.is_about_who or (request_code in ESSENTIAL_REQUESTS and TOOLS_GROUP not in str(answer.remark)):
            assert answer.remark is not None
            error = AccessRefusedError(answer.code, answer.remark, address, refusal, RequestCode(request_code))
            self.record_refusal(address, str(error), is_trust=refusal.is_about_who)

    def record_needed_request(self, error: AccessRefusedError) -> None:
        """Record the refusal of a request that is not in ESSENTIAL_REQUESTS, but that the caller needs."""
        self.record_refusal(error.address, str(error), is_trust=error.refusal.is_about_who)

    def record_refusal(self, address: str, reason: str, *, is_trust: bool) -> None:
        """Record a refusal by the server or this client. With `is_trust`, it concerns all requests to the address."""
        self.current[address, reason] = (is_trust, self._now())
        if self._now() - self._reported_at >= LOG_INTERVAL_SECONDS:
            self._reported_at = self._now()
            log_refusals(self.current_reasons())

    def trusted(self, address: str) -> None:
        """Called when a response shows that the server trusts this client. Ends its refusals of our identity."""
        over = [key for key, (is_trust, _) in self.current.items() if is_trust and key[0] == address]
        for key in over:
            del self.current[key]
        if over and not self.current:
            log.info("access.restored", address=address)

    def forget_failures(self) -> None:
        """Forget all refusals. Called after keys or certificates were replaced."""
        self.version += 1
        self.current.clear()
        self._reported_at = float("-inf")

    def _forget_old(self) -> None:
        now = self._now()
        for key, (is_trust, seen_at) in list(self.current.items()):
            if now - seen_at > (FORGET_TRUST_REFUSAL_SECONDS if is_trust else FORGET_PERMISSION_REFUSAL_SECONDS):
                del self.current[key]


def log_refusals(reasons: Sequence[str]) -> None:
    """Log refusals in one line, with at most MAX_LOGGED_REASONS reasons and the number of further reasons."""
    more = {"more": len(reasons) - MAX_LOGGED_REASONS} if len(reasons) > MAX_LOGGED_REASONS else {}
    log.error(
        "access.refused", reason="; ".join(reasons[:MAX_LOGGED_REASONS]), again_in_seconds=LOG_INTERVAL_SECONDS, **more
    )


class Security:
    """The keys that sign requests (`credentials`, None: requests are unsigned), the TLS settings, and the refusals."""

    def __init__(self, options: ClientOptions, clock: Clock) -> None:
        self.refusals = Refusals(clock)
        self._context: ssl.SSLContext | None = None
        self._words: frozenset[str] = frozenset()
        self._set(options)

    @property
    def version(self) -> int:
        """A number that increases with every change of keys or TLS settings."""
        return self.refusals.version

    def change(self, options: ClientOptions) -> bool:
        """Use the keys and TLS settings of `options`. Returns whether the TLS settings differ from the previous ones.

        If they differ, the caller must replace the connections. The next connection reads certificate files again.
        """
        before = self.tls
        self._set(options)
        self._context = None
        self.refusals.forget_failures()
        return before != self.tls

    def signed(self, ext_fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
        """Return a request's ext fields, with the fields of all requests and, if there are keys, a signature."""
        if self.request_fields:
            ext_fields = {**ext_fields, **self.request_fields}
        return ext_fields if self.credentials is None else self.credentials.signed(ext_fields, body)

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context for a new connection; None without TLS. Raises TlsFileError."""
        if self.tls.enabled and self._context is None:
            if not self.tls.verify:
                log.warning("tls.unverified", advice="anyone can impersonate the server; set client.tls.verify: true")
            self._context = client_context(self.tls)
        return self._context

    def _set(self, options: ClientOptions) -> None:
        self.tls: TlsOptions = options.tls
        self.request_fields = options.request_fields
        self.credentials: Credentials | None = None
        if options.access_key:
            self.credentials = Credentials(options.access_key, options.secret_key, options.security_token)
        former = self._words  # also hide the previous keys, because responses to requests with them may still arrive
        self._words = frozenset({options.access_key, options.secret_key, options.security_token} - {""})
        words = "|".join(re.escape(text) for text in sorted(former | self._words, key=len, reverse=True))
        self.refusals.secret_pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None


MAX_PROBE_SECONDS: Final = 2.0

_NOT_TLS: Final = "the server answers without TLS; set client.tls.enabled: false, or tls.server.mode=permissive there"
_TLS_ONLY: Final = "the server accepts only TLS; set client.tls.enabled: true"
_NO_CERTIFICATE: Final = "the server requires a client certificate; set client.tls.cert_file and key_file"
_REFUSED_OURS: Final = "the server does not accept the certificate in client.tls.cert_file"
# Explanations by a part of the reason in an OpenSSL error, which may be an alert of the peer. The first match counts.
_REASONS: Final = (
    ("WRONG_VERSION_NUMBER", _NOT_TLS),
    ("HTTP_REQUEST", _NOT_TLS),
    ("PACKET_LENGTH_TOO_LONG", _NOT_TLS),
    ("RECORD_LAYER_FAILURE", _NOT_TLS),
    ("CERTIFICATE_REQUIRED", _NO_CERTIFICATE),
    ("ALERT_CERTIFICATE_EXPIRED", f"{_REFUSED_OURS}, which has expired"),
    ("ALERT_CERTIFICATE_REVOKED", f"{_REFUSED_OURS}, which was revoked"),
    ("ALERT_UNKNOWN_CA", f"{_REFUSED_OURS}, whose signing authority it does not know"),
    ("ALERT_CERTIFICATE_UNKNOWN", _REFUSED_OURS),
    ("ALERT_BAD_CERTIFICATE", _REFUSED_OURS),
    ("ALERT_UNSUPPORTED_CERTIFICATE", _REFUSED_OURS),
    ("ALERT_HANDSHAKE_FAILURE", "the server ends the handshake; it may require a certificate (client.tls.cert_file)"),
    (
        "ALERT_INTERNAL_ERROR",
        "the server fails in the handshake; it may not know the authority that signed client.tls.cert_file",
    ),
    ("PROTOCOL_VERSION", "the server does not support TLS 1.2 or later, which rmqd requires"),
    ("UNSUPPORTED_PROTOCOL", "the server does not support TLS 1.2 or later, which rmqd requires"),
)
_EXPIRED, _NOT_YET, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's X509_V_ERR_*


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """Return the SSL context for connections with TLS 1.2 or later. Raises TlsFileError if a file cannot be used.

    The context checks the server's certificate and host name if `options.verify` is True.
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
    """Return the errors in the files of the TLS settings. `ca_file` is checked separately from certificate and key."""
    problems = []
    # check only configured files, because reading the system's authorities takes 50 ms
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
        # always pass a password, even an empty one, because without one OpenSSL asks for it on the terminal
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


def explain_tls_error(error: BaseException, server_name: str, *, shows_one: bool = True) -> str | None:
    """Return an explanation of an error from a handshake or connection; None if the error is not from TLS.

    `shows_one` is whether the client has a certificate. Old servers report a missing certificate as "bad certificate".
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
    """Return why a server closed a connection before it sent a response; None if the reason is unknown.

    `context` is the TLS context of that connection; None if it had no TLS. Opens other connections to find out: with
    TLS if that connection had no TLS; otherwise without TLS, and then with TLS to read the alert. Raises nothing.
    """
    try:
        async with clock.timeout(MAX_PROBE_SECONDS):
            if context is None:
                return _TLS_ONLY if await _speaks_tls(host, port) else None
            if await _answers_in_plain(host, port):
                return _NOT_TLS
            error = await _objection(host, port, context, server_name)
            return None if error is None else explain_tls_error(error, server_name, shows_one=shows_one)
    except (OSError, TimeoutError, ValueError):
        return None


async def _objection(host: str, port: int, context: ssl.SSLContext, server_name: str) -> ssl.SSLError | None:
    """Return the server's alert about the client's certificate, which follows the handshake; None without an alert.

    Sends no request, because the closing server would answer with a reset, which overtakes the alert.
    """
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
        return "ALERT" in (error.reason or "")  # a TLS server that rejects this client
    writer.transport.abort()
    return True


async def _answers_in_plain(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # name servers answer this request, and brokers answer it with an error, so any server without TLS responds
        writer.write(encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "TBW102"}))
        first = await reader.read(1)
        return first in (b"\x00", b"\x01")  # first byte of a frame's length (up to 16 MiB), not of a TLS record
    except ConnectionError:  # the server closed the connection before it had read the request, which causes a reset
        return False
    finally:
        writer.transport.abort()
