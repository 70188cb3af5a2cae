"""A canary: a second handler of a group, which gets a stable share of the group's messages.

A hash of a message's key decides which handler gets the message. So all messages of a key go to the same handler, also
when they are retried. If the share grows, the canary keeps the keys that it has. A canary has one of two modes:

- `live`: the canary handles its share instead of the first handler. Each batch has messages for only one handler.
  The canary's batches pass through the same calls and settlement. They are counted separately (`variant="canary"`).
- `shadow`: the first handler handles all messages. After each call of the first handler, the canary gets copies of its
  share in the background. The canary's decisions are only counted and compared. At most `concurrency` canary calls run
  at a time, and further messages are skipped. So a slow or hanging canary delays nothing.

A canary that cannot be started, or cannot handle any message, is switched off, and the first handler gets everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import structlog

from rmqd.consumer.consumer_options import CanaryOptions, ConsumerOptions
from rmqd.consumer.handling.handler_threads import (
    CANCEL_TIMEOUT_SECONDS,
    UnusableHandlerError,
    call_handler,
    call_start_or_stop,
    with_result_checks,
    wrap_handler,
)
from rmqd.consumer.handling.watched_tasks import HandlerTasks
from rmqd.handler_api.batch import Batch, Decision, LoadedHandler, Outcome, decision_for_error
from rmqd.runtime.clock import Clock
from rmqd.runtime.figures import counter, figure, histogram, if_known
from rmqd.runtime.histogram import HANDLER_DURATION_BOUNDS, Histogram, HistogramSnapshot
from rmqd.runtime.plain_text import describe, text_of
from rmqd.wire.message_queue import Identity, MessageQueue
from rmqd.wire.messages.message import Message, Once, OnceInGroup, once_in_group
from rmqd.wire.messages.properties import value_reader

log = structlog.get_logger(__name__)

CANARY_VARIANT: Final = "canary"
_HASHES: Final = 1 << 32  # how many different hashes of four bytes exist
_RESULTS: Final = ("acked", "retried", "dead_lettered", "expired", "skipped")
_NAMES: Final = {Outcome.ACK: "acked", Outcome.DEAD_LETTER: "dead_lettered"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySnapshot:
    """The canary of a group, with its results in shadow mode."""

    plugin: str
    share: float
    by: str
    mode: str
    failure: str = figure(if_known(lambda one, other: one or other), default="")
    """Why the canary was switched off; empty while it is used."""
    shadowed: dict[str, int] = counter(
        "rmqd_shadow_messages_total",
        "Messages that a canary got in shadow mode, by the decision that it would have made: acked, retried, "
        "dead_lettered, expired; skipped if too many of its calls ran.",
        by="result",
        keys=_RESULTS,
    )
    differing: int = counter(
        "rmqd_shadow_differences_total", "Messages that a canary in shadow mode decided differently."
    )
    duration: HistogramSnapshot = histogram(
        "rmqd_shadow_duration_seconds", "How long a canary's calls in shadow mode took for one batch."
    )


class Canary:
    """The second handler of one group, in live or shadow mode."""

    def __init__(self, handler: LoadedHandler, options: ConsumerOptions, clock: Clock) -> None:
        self.handler = with_result_checks(handler)
        self.apply_options(options)
        self._value_of = value_reader(self.options.by)
        self._clock, self._tasks = clock, HandlerTasks(self.handler, clock)
        self.failure = ""  # why the canary was switched off; empty while it is used
        self._started = False
        self._calls: set[asyncio.Task[None]] = set()
        self._busy = 0  # running calls in shadow mode, including calls past their deadline
        self._shadowed = dict.fromkeys(_RESULTS, 0)
        self._differing = 0
        self._duration = Histogram(HANDLER_DURATION_BOUNDS)

    def apply_options(self, options: ConsumerOptions) -> None:
        """Apply the group's changed options: the share, and the concurrency and deadline of calls in shadow mode."""
        assert options.canary is not None
        self.options: CanaryOptions = options.canary
        self._most_calls, self._timeout_seconds = options.concurrency, options.consume_timeout_seconds

    @property
    def is_live(self) -> bool:
        """Whether the canary handles its messages instead of the first handler."""
        return self.options.mode == "live"

    def is_in_share(self, message: Message) -> bool:
        """Return whether a message belongs to the canary's share; False once the canary is switched off."""
        share = self.options.share
        if not share or self.failure:
            return False
        value = self._value_of(message) or message.first_copy_id
        return int.from_bytes(blake2b(value.encode(), digest_size=4).digest()) < share * _HASHES

    async def start(self) -> None:
        """Start the handler. If that fails, the canary is switched off."""
        try:
            self._started = await call_start_or_stop(self.handler.start, self._clock)
        except Exception as error:  # noqa: BLE001  any exception of the author's code; the first handler must start
            self._switch_off(f"its start failed: {describe(error)}")

    async def stop(self) -> None:
        """End the calls in shadow mode, and stop the handler."""
        for call in self._calls:
            call.cancel()
        if self._calls:
            await self._clock.wait(self._calls, timeout=CANCEL_TIMEOUT_SECONDS)
        if self._started:
            await call_start_or_stop(self.handler.stop, self._clock)

    def wrap_handler(self, first: LoadedHandler) -> LoadedHandler:
        """Return `first` with this canary attached. In live mode, batches of the canary's share go to the canary."""
        if not self.is_live:
            return replace(first, canary=self)
        ends = [one.end_calls for one in (first, self.handler) if one.end_calls is not None]
        both = wrap_handler(first, self._either_async if first.is_async else self._either)
        return replace(both, canary=self, end_calls=partial(_call_all, ends) if ends else None)

    def _either(self, call_first: Callable[[Batch], Any], batch: Batch) -> Any:
        if self.is_in_share(batch[0]):
            try:
                return self.handler.handle(batch)
            except UnusableHandlerError as error:
                self._switch_off(str(error))
        return call_first(batch)

    async def _either_async(self, call_first: Callable[[Batch], Any], batch: Batch) -> Any:
        if self.is_in_share(batch[0]):
            try:
                return await self.handler.handle(batch)
            except UnusableHandlerError as error:
                self._switch_off(str(error))
        return await call_first(batch)

    def separate_handlers(
        self, make: Callable[[list[Message], MessageQueue], Batch], put_back: Callable[[Sequence[Message]], None], *,
        in_order: bool,
    ) -> Callable[[list[Message], MessageQueue], Batch]:  # fmt: skip
        """Return a function that makes batches like `make`, each with messages for only one handler.

        The batch is for the handler of its first message. The function puts the other handler's messages back into the
        queue; with `in_order`, also all messages behind the first message of the other handler.
        """

        def made(messages: list[Message], message_queue: MessageQueue) -> Batch:
            kinds = [self.is_in_share(message) for message in messages]
            if len(set(kinds)) > 1:
                cut = next(index for index, kind in enumerate(kinds) if kind != kinds[0])
                own = [kind == kinds[0] and (index < cut or not in_order) for index, kind in enumerate(kinds)]
                put_back([message for message, is_own in zip(messages, own, strict=True) if not is_own])
                messages[:] = [message for message, is_own in zip(messages, own, strict=True) if is_own]
            return make(messages, message_queue)

        return made

    async def call_with_shadow(
        self, call: Callable[[Batch], Awaitable[object]], _worker: object, batch: Batch
    ) -> object:
        """Call the first handler, then the canary with copies of its share. A stage of `HandlerSlots._call_of`."""
        chosen = [index for index, message in enumerate(batch) if self.is_in_share(message)]
        copies = [copy(batch[index]) for index in chosen]  # before the handler and the settlement change messages
        error: BaseException | None = None
        try:
            return await call(batch)
        except (asyncio.CancelledError, UnusableHandlerError):  # without a result, there is no decision to compare
            copies.clear()
            raise
        except BaseException as raised:
            error = raised
            raise
        finally:
            if copies:
                decisions, rest = batch.decisions(), decision_for_error(error)
                self._begin(batch.with_messages(copies), [decisions.get(index, rest) for index in chosen])
            del error  # its traceback refers to this frame, and would keep the batch alive

    def snapshot(self) -> CanarySnapshot:
        one = self.options
        return CanarySnapshot(
            plugin=self.handler.name,
            share=one.share,
            by=one.by,
            mode=one.mode,
            failure=self.failure,
            shadowed=dict(self._shadowed),
            differing=self._differing,
            duration=self._duration.snapshot(),
        )

    def _begin(self, batch: Batch, first: Sequence[Decision]) -> None:
        if self._busy >= self._most_calls:
            self._shadowed["skipped"] += len(batch)
            return
        self._busy += 1
        call = asyncio.create_task(self._compare(batch, first), name="call of a canary in shadow mode")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _compare(self, batch: Batch, first: Sequence[Decision]) -> None:
        """Call the canary with a batch, and compare its decisions with the first handler's."""
        if (group := once_in_group.get(None)) is not None:
            once_in_group.set(_ShadowOnce(group))
        started = self._clock.monotonic()
        calling = asyncio.create_task(self._tasks.timed(self._called(batch)), name="canary")
        try:
            _, late = await self._clock.wait((calling,), timeout=self._timeout_seconds)
        finally:
            calling.cancel()  # has no effect if the call has ended
        error = None if late else calling.result()
        batch.end()
        self._duration.observe(self._clock.monotonic() - started)
        decisions, rest = batch.decisions(), decision_for_error(error)
        for index, (message, before) in enumerate(zip(batch, first, strict=True)):
            one = decisions.get(index, rest)
            result = "expired" if late and index not in decisions else _NAMES.get(one.outcome, "retried")
            self._shadowed[result] += 1
            if result != (wanted := _NAMES.get(before.outcome, "retried")):
                self._differing += 1
                why = one.error or error
                log.warning(
                    "canary.differs",
                    msg_id=message.msg_id,
                    queue=str(message.message_queue),
                    first=wanted,
                    canary=result,
                    error=None if why is None else text_of(why, repr),
                )

    async def _called(self, batch: Batch) -> BaseException | None:
        try:
            await call_handler(self.handler, batch, self._call_ended)
        except BaseException as error:  # noqa: BLE001  every exception of a handler is its result
            return error
        return None

    def _call_ended(self) -> None:
        self._busy -= 1

    def _switch_off(self, reason: str) -> None:
        if not self.failure:
            self.failure = reason
            log.error("canary.failed", handler=self.handler.name, error=reason)


class _ShadowOnce:
    """Makes `message.once` in shadow calls write records that are separate from the first handler's records."""

    def __init__(self, group: OnceInGroup) -> None:
        self._group = group

    @property
    def identity(self) -> Identity:
        return replace(self._group.identity, replay=CANARY_VARIANT)

    def __call__(self, message: Any, connection: object, /) -> Once:
        return self._group(message, connection)


def _call_all(functions: Sequence[Callable[[], Any]]) -> None:
    for function in functions:
        function()
