"""The handler `webhook`: HTTP calls over kept connections, with retries."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from rmqd import Batch, DeadLetter, Message, Retry, Suspend
from rmqd_handlers.away import (
    ON_INVALID,
    RETRY_FOR,
    CounterpartUnavailableError,
    OnInvalid,
    acknowledge_written,
    mark_waiting,
    refuse,
    try_again,
    valid,
)
from rmqd_handlers.message_values import InvalidBodyError
from rmqd_handlers.option_kinds import DurationSeconds, HandlerOptions, option, require
from rmqd_handlers.webhook.connections import (
    IDLE_SECONDS,
    Action,
    Connections,
    Status,
    Tls,
    action_for,
    delay_level,
    retry_after_seconds,
)
from rmqd_handlers.webhook.content import ONE_BY_ONE, Contents, Format, Scheme, WebhookCall, key_of, signed

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE_BYTES: Final = 64 << 10
"""How much of a response is read; a connection with a longer response is closed."""
REASON_CHARACTERS: Final = 500
REDIRECT_RETRY_SECONDS: Final = 30.0
_NO_BLANKS: Final = re.compile(r"[^\s\x00-\x1f\x7f]+")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"([!-~]([\t -~]*[!-~])?)?")


class RedirectError(CounterpartUnavailableError):
    """The server redirects to another URL. All calls fail until the option `url` has that URL."""


class Webhook:
    """POSTs messages to an HTTP server, one or many per call. The status of the response settles them."""

    calls_limited_by: ClassVar[str] = "max_connections"

    class Options(HandlerOptions):
        url: str = Field(description="the destination: http:// or https://", pattern=r"^https?://[^/]+")
        per_call: Literal["message", "batch"] = option(
            "message", "message: a call for each; batch: one for the whole batch, as a JSON array"
        )
        format: Format = option(
            "body",
            "body: the body as it is, fields as headers; json: the record that jsonl writes; cloudevents: "
            "CloudEvents 1.0 in JSON; cloudevents_binary: CloudEvents with attributes as headers",
        )
        content_type: str = option("application/json", "the media type of the messages' bodies")
        event_type: str = option("rocketmq.message", "for CloudEvents: the attribute type", min_length=1)
        event_source: str | None = option(None, "for CloudEvents: the attribute source; default: /topics/TOPIC")
        headers: dict[str, str] = option({}, "headers of every call, such as Authorization")
        signing_secret: SecretStr | None = option(None, "secret that signs each call with HMAC-SHA256")
        signing: Scheme = option(
            "standard_webhooks",
            "standard_webhooks: the headers webhook-id, webhook-timestamp and webhook-signature; "
            "sha256: the header X-Hub-Signature-256, over the content alone",
        )
        on_status: dict[Status, Action] = option(
            {},
            "how to settle messages by status, such as {409: ack, 4xx: dead_letter}: ack, wait, "
            "retry (a counted attempt) or dead_letter; default: 2xx is ack, 400, 413, 415, 422 and 431 are "
            "dead_letter, all others are wait",
        )
        timeout: DurationSeconds = option(
            "10s", "timeout of a call: to connect, to send the content, and to read the whole response", gt=0
        )
        retry_for: DurationSeconds = RETRY_FOR
        on_invalid: OnInvalid = ON_INVALID
        max_connections: int = option(20, "connections of this process; further calls wait for one", ge=1, le=1000)
        tls: Tls = option({}, "ca_file, cert_file, key_file, key_password, verify")
        proxy: SecretStr | None = option(None, "an HTTP proxy: http://user:password@host:port")

        @field_validator("url")
        @classmethod
        def _is_url(cls, url: str) -> str:
            if not _NO_BLANKS.fullmatch(url):
                raise ValueError("the URL contains a space or a control character; expected %20, for example")
            try:
                _ = urlsplit(url).port
            except ValueError:
                raise ValueError(
                    "the port is not valid; expected http://host:port/path, with a port up to 65535"
                ) from None
            return url

        @field_validator("headers")
        @classmethod
        def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
            for name, value in headers.items():
                if not _HEADER_NAME.fullmatch(name):
                    raise ValueError(f"{name!r} is not a header name; expected letters, digits and -, as in X-Shop")
                if not _HEADER_VALUE.fullmatch(value):  # not shown, because it may be a secret
                    raise ValueError(
                        f"the value of {name} is not a valid header value; expected printable ASCII on one line, "
                        "without spaces at its ends"
                    )
            return headers

        @model_validator(mode="after")
        def _fit(self) -> Self:
            self._are_headers({"content_type": self.content_type})
            if self.per_call == "batch" and self.format in ONE_BY_ONE:
                raise ValueError(
                    f"format: {self.format} sends one message per call; expected json or cloudevents for a batch"
                )
            if self.signing_secret is not None:
                key_of(self.signing_secret.get_secret_value(), self.signing)
            return self

    def __init__(self, options: Options) -> None:
        require("httpx", "webhook")
        self._options = options
        self._contents = Contents(options.format, options.content_type, options.event_source, options.event_type)
        secret = options.signing_secret
        self._key = key_of(secret.get_secret_value(), options.signing) if secret is not None else None
        self._not_before = 0.0
        self._connections: Connections

    async def start(self) -> None:
        """Read the URL and the certificates now: unusable ones fail the start instead of each message."""
        import httpx

        httpx.URL(self._options.url)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every call with its URL
        one = self._options
        context = one.tls.context()

        def make() -> httpx.AsyncClient:
            return httpx.AsyncClient(
                # a compressed response could become too large
                headers={"User-Agent": "rmqd", "Accept-Encoding": "identity", **one.headers},
                verify=context,
                proxy=one.proxy.get_secret_value() if one.proxy is not None else None,
                limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_SECONDS),
                timeout=None,  # our timeout covers the whole exchange
                trust_env=False,  # only the options choose a proxy
            )

        self._connections = Connections(make, one.max_connections)

    async def stop(self) -> None:
        await self._connections.close()

    async def handle(self, batch: Batch) -> None:
        if self._options.per_call == "batch":
            await self._handle_at_once(batch)
            return
        failure: Exception | None = None
        until = time.monotonic() + self._options.retry_for
        for message in batch:
            try:
                call = self._contents.call_for_message(message)
            except InvalidBodyError as error:
                refuse(batch, message, error, self._options.on_invalid)
                continue
            try:
                await self._post(batch, call, until)
            except DeadLetter as refused:
                batch.dead_letter(message, refused.reason)
            except Exception as error:
                if batch.wait_behind(message) or isinstance(error, Retry):  # a Retry concerns all calls
                    raise
                failure = failure or error
            else:
                batch.ack(message)  # so that it is not sent again if another message fails
        if failure is not None:
            raise failure

    async def _handle_at_once(self, batch: Batch) -> None:
        items = valid(batch, lambda opened: self._contents.item(opened.message), self._options.on_invalid)
        if items:
            await self._post_all(batch, items, time.monotonic() + self._options.retry_for, is_part=False)
            acknowledge_written(batch)

    async def _post_all(
        self, batch: Batch, items: Sequence[tuple[Message, str]], until: float, *, is_part: bool
    ) -> None:
        """Send messages in one call. If the server refuses the call, send its halves: one message may be the cause."""
        try:
            await self._post(batch, self._contents.of_many(items), until)
        except DeadLetter as refused:
            if len(items) == 1:
                batch.dead_letter(items[0][0], refused.reason)
                return
            middle = len(items) // 2
            for part in (items[:middle], items[middle:]):
                await self._post_all(batch, part, until, is_part=True)
        else:
            for message, _ in items if is_part else ():
                batch.ack(message)  # even if the other half of the batch fails

    async def _post(self, batch: Batch, call: WebhookCall, until: float) -> None:
        """Send a call until the server accepts it. Raises DeadLetter if the server refuses it.

        At the monotonic time `until`, raises Retry or Suspend if the server asked to wait, else the last error.
        """
        import httpx

        # OSError includes our timeout, and the ssl.SSLError raised if a server refuses the client's certificate
        away = (httpx.TransportError, OSError, CounterpartUnavailableError)
        try:
            left_seconds = until - time.monotonic()
            await try_again(
                lambda: self._attempt(call),
                away,
                left_seconds,
                "webhook",
                lambda error: not isinstance(error, RedirectError),
            )
        except CounterpartUnavailableError as error:
            if isinstance(error, RedirectError) or error.wait_seconds <= 0:
                raise
            later: Suspend | Retry = Retry(delay_level(error.wait_seconds))
            if batch.wait_behind(batch[-1]):  # an orderly group has no delay levels; no message follows the last one
                later = Suspend(error.wait_seconds)
            if not error.is_attempt:
                mark_waiting(later, error.wait_seconds)
            raise later from error

    async def _attempt(self, call: WebhookCall) -> None:
        rest_seconds = self._not_before - time.monotonic()
        if rest_seconds > 0:
            raise CounterpartUnavailableError("the server asked to wait (Retry-After)", rest_seconds)
        async with self._connections.client() as client:
            response, text = await self._exchange(client, call)
        said = f"the server responded {response.status_code} {response.reason_phrase}: {text}".rstrip(": ")
        if response.has_redirect_location:
            said = f"{said}; it redirects to {response.headers['Location']}"
        match action_for(response.status_code, self._options.on_status):
            case "dead_letter":
                raise DeadLetter(said)
            case "wait" if response.has_redirect_location:
                raise RedirectError(said, REDIRECT_RETRY_SECONDS)
            case "wait" | "retry" as action:
                wait_seconds = retry_after_seconds(response.headers.get("Retry-After"))
                self._not_before = max(self._not_before, time.monotonic() + wait_seconds)
                raise CounterpartUnavailableError(said, wait_seconds, is_attempt=action == "retry")

    async def _exchange(self, client: httpx.AsyncClient, call: WebhookCall) -> tuple[httpx.Response, str]:
        """Send a call. Returns the response, and the start of its text."""
        headers = {"Idempotency-Key": call.id, **call.headers}
        if self._key is not None:
            headers |= signed(self._options.signing, self._key, call.id, call.content)
        answer = bytearray()
        try:
            async with (
                asyncio.timeout(self._options.timeout),
                client.stream("POST", self._options.url, content=call.content, headers=headers) as response,
            ):
                async for chunk in response.aiter_raw():
                    answer += chunk
                    if len(answer) > MAX_RESPONSE_BYTES:
                        break
        except TimeoutError:
            raise TimeoutError(f"no complete response within {self._options.timeout:g} s") from None
        return response, answer[: 4 * REASON_CHARACTERS].decode(errors="replace").strip()[:REASON_CHARACTERS]
