"""The client's keys and TLS settings, and the refusals of name servers and brokers.

Keys and certificates can be changed while the client runs: later requests are signed with the new keys, and new
connections use the new certificates.

A refusal is a response in which a server denies access, or a certificate that is not trusted. rmqd repeats refused
requests within seconds, for many queues at once. So Refusals logs all of them in one line, once a minute, and the
errors have `is_reported` set: their receiver need not log them. Refusals about identity (keys, certificates) concern
every request to that server; other refusals concern one topic or group.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.access_refusal import AccessRefusal
from rmqd.broker_errors import AccessRefusedError
from rmqd.client.options import ClientOptions, TlsOptions
from rmqd.client.remoting.tls import client_context
from rmqd.clock import Clock
from rmqd.codes import RequestCode
from rmqd.wire.acl import Credentials

if TYPE_CHECKING:
    from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)

TELL_SECONDS: Final = 60.0
MOST_REASONS: Final = 3  # in one log line
# Refused requests are repeated within seconds, and routes within half a minute. A refusal that was not repeated for
# longer than this has ended, or is from a broker that has left.
TRUST_FORGOTTEN_SECONDS: Final = 70.0
PERMISSION_FORGOTTEN_SECONDS: Final = 25.0
# Requests that are needed for consuming. rmqd tolerates a refusal of any other request.
ESSENTIAL: Final = frozenset(
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
    """The present refusals of servers. Logs them once a minute, and removes our keys from the servers' texts."""

    def __init__(self, clock: Clock) -> None:
        self.current: dict[tuple[str, str], tuple[bool, float]] = {}
        """By address and reason: whether the refusal concerns all requests to the address, and its last time."""
        self.hidden: re.Pattern[str] | None = None
        """Present and previous keys, which are replaced by *** in servers' texts."""
        self.version = 0
        """Increases when keys or certificates change. Responses to requests of an older version are ignored."""
        self._now = clock.monotonic
        self._reported_at = float("-inf")

    def about(self, names: Iterable[str]) -> str | None:
        """Return the refusal that stops a group from consuming, if any. `names` are the group's and its topics'."""
        self._forget_old()
        named = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names))
        found = [reason for (_, reason), (is_trust, _) in self.current.items() if is_trust or named.search(reason)]
        return found[0] if found else None

    def standing(self) -> tuple[str, ...]:
        """Return the reasons of all present refusals, each once."""
        self._forget_old()
        return tuple(dict.fromkeys(reason for _, reason in self.current))

    def judge(self, address: str, request_code: int, version: int, answer: RemotingCommand) -> None:
        """Check whether a response is a refusal, or shows that a refusal has ended.

        Called for responses without success, and for all responses while there are refusals. `version` is the version
        at the time of the request.
        """
        if answer.remark and self.hidden is not None:
            answer.remark = self.hidden.sub("***", answer.remark)
        if version != self.version:
            return
        refusal = AccessRefusal.of(answer.code, answer.remark) if answer.code and answer.remark else None
        if refusal is None:
            self.trusted(address)
        elif refusal.is_about_who or request_code in ESSENTIAL:
            assert answer.remark is not None
            error = AccessRefusedError(answer.code, answer.remark, address, refusal, RequestCode(request_code))
            self.refused(address, str(error), is_trust=refusal.is_about_who)

    def needed(self, error: AccessRefusedError) -> None:
        """Report a refusal of a request that is not in ESSENTIAL, but was needed here."""
        self.refused(error.address, str(error), is_trust=error.refusal.is_about_who)

    def refused(self, address: str, reason: str, *, is_trust: bool) -> None:
        """Note a refusal, by the server or by this client. `is_trust`: it concerns all requests to the address."""
        self.current[address, reason] = (is_trust, self._now())
        if self._now() - self._reported_at >= TELL_SECONDS:
            self._reported_at = self._now()
            tell_refusals(self.standing())

    def trusted(self, address: str) -> None:
        """Note a response that shows that the server trusts us: refusals of all its requests have ended."""
        over = [key for key, (is_trust, _) in self.current.items() if is_trust and key[0] == address]
        for key in over:
            del self.current[key]
        if over and not self.current:
            log.info("access.restored", address=address)

    def start_anew(self) -> None:
        """Forget all refusals, because keys or certificates were replaced."""
        self.version += 1
        self.current.clear()
        self._reported_at = float("-inf")

    def _forget_old(self) -> None:
        now = self._now()
        for key, (is_trust, seen_at) in list(self.current.items()):
            if now - seen_at > (TRUST_FORGOTTEN_SECONDS if is_trust else PERMISSION_FORGOTTEN_SECONDS):
                del self.current[key]


def tell_refusals(reasons: Sequence[str]) -> None:
    """Log refusals, several in one line."""
    more = {"more": len(reasons) - MOST_REASONS} if len(reasons) > MOST_REASONS else {}
    log.error("access.refused", reason="; ".join(reasons[:MOST_REASONS]), again_in_seconds=TELL_SECONDS, **more)


class Security:
    """The keys that sign requests (None: unsigned), the TLS settings, and the refusals."""

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
        """Use other keys and certificates. Returns whether the TLS settings differ, so that connections must end.

        Certificate files are always read again when the next connection is opened.
        """
        before = self.tls
        self._set(options)
        self._context = None
        self.refusals.start_anew()
        return before != self.tls

    def signed(self, ext_fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
        """Return a request's ext fields, the fields of all requests, and the signature if there are keys."""
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
        former = self._words  # responses to requests that were signed with these keys may still arrive
        self._words = frozenset({options.access_key, options.secret_key, options.security_token} - {""})
        words = "|".join(re.escape(text) for text in sorted(former | self._words, key=len, reverse=True))
        self.refusals.hidden = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None
