"""Who the client says that it is, whom it trusts, and what name servers and brokers hold against that.

Both can be changed while the client runs: what is sent from then on is signed anew, and new connections are made by the
new certificates.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.client.options import ClientOptions, TlsOptions
from rmqd.client.remoting.tls import client_context
from rmqd.codes import RequestCode
from rmqd.errors import AccessRefusal, AccessRefusedError
from rmqd.wire.acl import Credentials

if TYPE_CHECKING:
    from rmqd.wire.command import RemotingCommand

log = structlog.get_logger(__name__)

TELL_SECONDS: Final = 60.0
MOST_REASONS: Final = 3  # in one line
# Whatever is refused is asked for again within seconds, routes within half a minute: what is older concerns nobody now,
# such as a broker that has left.
TRUST_FORGOTTEN_SECONDS: Final = 70.0
PERMISSION_FORGOTTEN_SECONDS: Final = 25.0
# Without these nothing, or not all, is consumed. What else may be forbidden, rmqd does without.
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
    """What servers refuse us for now, said once a minute for all of it; and in which words, without our keys."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.current: dict[tuple[str, str], tuple[bool, float]] = {}
        """By address and reason: whether that address refuses all we ask for, and when it last did so."""
        self.hidden: re.Pattern[str] | None = None
        """What servers' words must not show."""
        self.version = 0
        """Of the keys and certificates: answers to what was asked by former ones say nothing about these."""
        self._now = now
        self._told_at = float("-inf")

    def about(self, names: Iterable[str]) -> str | None:
        """What keeps a group from consuming that has these names, its own and its topics'; None where nothing does."""
        self._forget_old()
        named = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names))
        found = [reason for (_, reason), (is_trust, _) in self.current.items() if is_trust or named.search(reason)]
        return found[0] if found else None

    def standing(self) -> tuple[str, ...]:
        """All that is refused now, each reason once."""
        self._forget_old()
        return tuple(dict.fromkeys(reason for _, reason in self.current))

    def judge(self, address: str, request_code: int, version: int, answer: RemotingCommand) -> None:
        """Look at an answer that is no success, or that comes while something is refused; `version`: its request's."""
        if answer.remark and self.hidden is not None:
            answer.remark = self.hidden.sub("***", answer.remark)
        if version != self.version:
            return
        refusal = AccessRefusal.of(answer.code, answer.remark) if answer.code and answer.remark else None
        if refusal is None:
            self.trusted(address)
        elif refusal.is_about_who or request_code in ESSENTIAL:
            assert answer.remark is not None
            error = AccessRefusedError(answer.code, answer.remark, address, refusal)
            self.refused(address, str(error), is_trust=refusal.is_about_who)

    def needed(self, error: AccessRefusedError) -> None:
        """A permission is missing that could be done without elsewhere."""
        self.refused(error.address, str(error), is_trust=error.refusal.is_about_who)

    def refused(self, address: str, reason: str, *, is_trust: bool) -> None:
        """A server refuses us, or we it; `is_trust` where that goes for all requests."""
        self.current[address, reason] = (is_trust, self._now())
        if self._now() - self._told_at >= TELL_SECONDS:
            self._told_at = self._now()
            tell_refusals(self.standing())

    def trusted(self, address: str) -> None:
        """A server has answered, as one does to whom it knows."""
        over = [key for key, (is_trust, _) in self.current.items() if is_trust and key[0] == address]
        for key in over:
            del self.current[key]
        if over and not self.current:
            log.info("access.granted", address=address)

    def start_anew(self) -> None:
        """Keys or certificates were replaced: what was held against the old ones says nothing about the new ones."""
        self.version += 1
        self.current.clear()
        self._told_at = float("-inf")

    def _forget_old(self) -> None:
        now = self._now()
        for key, (is_trust, seen_at) in list(self.current.items()):
            if now - seen_at > (TRUST_FORGOTTEN_SECONDS if is_trust else PERMISSION_FORGOTTEN_SECONDS):
                del self.current[key]


def tell_refusals(reasons: Sequence[str]) -> None:
    """The line that is in the log once a minute."""
    more = {"more": len(reasons) - MOST_REASONS} if len(reasons) > MOST_REASONS else {}
    log.error("access.refused", reason="; ".join(reasons[:MOST_REASONS]), again_in_seconds=TELL_SECONDS, **more)


class Security:
    """The keys that requests are signed with (None: not at all), the TLS settings, and the refusals of both."""

    def __init__(self, options: ClientOptions | None = None) -> None:
        self.refusals = Refusals()
        self._context: ssl.SSLContext | None = None
        self._words: frozenset[str] = frozenset()
        self._set(options or ClientOptions())

    @property
    def version(self) -> int:
        """Raised with every change."""
        return self.refusals.version

    def change(self, options: ClientOptions) -> bool:
        """Go by other keys and certificates; says whether connections made by the old TLS settings must end.

        Certificates are read again in any case, when the next connection is made.
        """
        before = self.tls
        self._set(options)
        self._context = None
        self.refusals.start_anew()
        return before != self.tls

    def signed(self, ext_fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
        """The ext fields of a request; with its signature, where there are keys."""
        return ext_fields if self.credentials is None else self.credentials.signed(ext_fields, body)

    def context(self) -> ssl.SSLContext | None:
        """What a new connection goes by; None for one without TLS. Raises TlsFileError."""
        if self.tls.enabled and self._context is None:
            if not self.tls.verify:
                log.warning("tls.unverified", advice="anybody can pose as the server; set client.tls.verify: true")
            self._context = client_context(self.tls)
        return self._context

    def _set(self, options: ClientOptions) -> None:
        self.tls: TlsOptions = options.tls
        self.credentials: Credentials | None = None
        if options.access_key:
            self.credentials = Credentials(options.access_key, options.secret_key, options.security_token)
        former = self._words  # answers to what was asked by these may still come
        self._words = frozenset({options.access_key, options.secret_key, options.security_token} - {""})
        words = "|".join(re.escape(text) for text in sorted(former | self._words, key=len, reverse=True))
        self.refusals.hidden = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None
