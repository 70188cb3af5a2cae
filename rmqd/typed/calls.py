"""Calls a typed handler's function for the messages of a batch, and decides what becomes of each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rmqd.handler_api import (
    ACK,
    Batch,
    Decision,
    InvalidPayloadError,
    Outcome,
    decision_of,
)
from rmqd.typed.decoders import Decoder
from rmqd.typed.decorator import OnInvalid
from rmqd.typed.form import Form, Source
from rmqd.wire.messages.message import Message

_OUTCOMES: Final[Mapping[OnInvalid, Outcome]] = {
    "dead_letter": Outcome.DEAD_LETTER,
    "retry": Outcome.RETRY,
    "skip": Outcome.ACK,
}

Call = tuple[Any, dict[str, Any]]
"""The payload, or the payloads of a batch, and the arguments by name."""


class TypedCalls:
    """A function of payloads, as rmqd calls a handler: with batches.

    A function of one payload is called for one message after the other. What it raises is about that message alone, and
    the next ones are handled all the same; in an orderly group they wait, and are handed out again behind it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        decoder: Decoder,
        form: Form,
        on_invalid: OnInvalid,
        constants: Mapping[str, Any],
        *,
        is_async: bool,
    ) -> None:
        """`constants` are the arguments that are the same in each call; read when one begins."""
        self._function = function
        self._is_async = is_async
        self.decoder = decoder
        self.constants = constants
        self.per_batch = form.per_batch
        self.invalid = _OUTCOMES[on_invalid]
        self.varying: tuple[tuple[str, Source], ...] = tuple(
            (name, source) for name, source in form.others.items() if source in ("message", "messages", "batch")
        )

    def handler(self) -> Callable[[Batch], Any]:
        """The function that takes batches. It raises what the author's raises about all that is not decided."""
        function = self._function

        @functools.wraps(function)
        def handle(batch: Batch) -> Any:
            result, course = None, _Course(self, batch)
            for payload, named in course.calls():
                try:
                    result = function(payload, **named)
                except BaseException as error:
                    if not course.goes_on_after(error):
                        raise
            return result

        @functools.wraps(function)
        async def handle_async(batch: Batch) -> Any:
            result, course = None, _Course(self, batch)
            for payload, named in course.calls():
                try:
                    result = await function(payload, **named)
                except BaseException as error:
                    if not course.goes_on_after(error):
                        raise
            return result

        return handle_async if self._is_async else handle


class _Course:
    """One batch, from its first call to its last."""

    def __init__(self, calls: TypedCalls, batch: Batch) -> None:
        self._calls = calls
        self._batch = batch
        self._index = 0  # of the message that the function has
        self._is_over = False

    def calls(self) -> Iterator[Call]:
        """What to call the function with, one call after the other."""
        return self._whole() if self._calls.per_batch else self._one_by_one()

    def goes_on_after(self, error: BaseException) -> bool:
        """Note what a call raised, if it is about one of several messages; False if it is to be raised on."""
        if self._calls.per_batch or len(self._batch) == 1:
            return False
        if not isinstance(error, Exception):  # the end of the call, as by its deadline: what is done stays done
            for index in range(self._index):
                self._batch.decide(index, ACK)
            return False
        decision = decision_of(error)
        self._fail(self._index, Decision(decision.outcome, decision.delay_level, decision.reason, error))
        return True

    def _one_by_one(self) -> Iterator[Call]:
        for index, message in enumerate(self._batch):
            self._index = index
            try:
                payload = self._calls.decoder.payload(message)
            except InvalidPayloadError as error:
                self._fail(index, self._invalid(error))
            else:
                yield payload, self._named([message])
            if self._is_over:
                return

    def _whole(self) -> Iterator[Call]:
        payloads: list[Any] = []
        messages: list[Message] = []
        for index, message in enumerate(self._batch):
            try:
                payloads.append(self._calls.decoder.payload(message))
            except InvalidPayloadError as error:
                self._fail(index, self._invalid(error))
                if self._is_over:
                    break
            else:
                messages.append(message)
        if payloads:
            yield payloads, self._named(messages)

    def _named(self, messages: list[Message]) -> dict[str, Any]:
        values: dict[Source, Any] = {"message": messages[0], "messages": messages, "batch": self._batch}
        return {**self._calls.constants, **{name: values[source] for name, source in self._calls.varying}}

    def _invalid(self, error: InvalidPayloadError) -> Decision:
        return Decision(self._calls.invalid, reason=str(error), error=error)

    def _fail(self, index: int, decision: Decision) -> None:
        """Decide about a message. In an orderly group nothing passes one that is to be repeated."""
        self._batch.decide(index, decision)
        if decision.outcome is Outcome.RETRY:
            self._is_over = self._batch.wait_behind(self._batch[index])
