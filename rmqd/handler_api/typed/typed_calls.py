"""Calls a typed handler's function for the messages of a batch, and decides about each message."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rmqd.errors import RmqdError
from rmqd.handler_api.batch import AGAIN_DECISION, Batch, Decision, InvalidPayloadError, Outcome, decision_for_error
from rmqd.handler_api.typed.decoders import Decoder
from rmqd.handler_api.typed.signatures import OnInvalid
from rmqd.handler_api.typed.typed_form import ArgumentSource, CallForm
from rmqd.offset_stores import offset_connection
from rmqd.runtime.own_threads import is_call_abandoned

_HANDLED: Final = Decision(Outcome.ACK)  # decision after a call that returned, while further calls follow
_OUTCOMES: Final[Mapping[OnInvalid, Outcome]] = {
    "dead_letter": Outcome.DEAD_LETTER,
    "retry": Outcome.RETRY,
    "skip": Outcome.ACK,
}

CallArguments = tuple[Any, dict[str, Any]]
"""The payload, or the payloads of a batch, and the keyword arguments."""


@dataclass(frozen=True, slots=True)
class TypedCalls:
    """A typed handler's function, converted to a handler that takes batches.

    A function of one payload is called for each message in turn. An exception concerns only the message of its call,
    and the next messages are still handled. In an orderly group, the next messages are not handled: they wait for the
    retry of this message.
    """

    function: Callable[..., Any]
    decoder: Decoder
    form: CallForm
    on_invalid: OnInvalid
    constants: Mapping[str, Any]
    """The arguments that are the same in each call, such as options and dependencies. Read at the start of a call."""
    check: Callable[[object], None]
    """Raises RmqdError for an invalid result, such as a coroutine that the function did not await."""
    is_async: bool

    def handler(self) -> Callable[[Batch], Any]:
        """Return the handler that takes batches. Its exceptions apply to all undecided messages of the batch."""
        function, check = self.function, self.check

        @functools.wraps(function)
        def handle(batch: Batch) -> None:
            course = _Course(self, batch, is_call_abandoned.get())
            for payload, named in course.calls():
                try:
                    if (result := function(payload, **named)) is not None:
                        check(result)
                except BaseException as error:
                    if not course.continues_after(error):
                        raise

        @functools.wraps(function)
        async def handle_async(batch: Batch) -> None:
            task = asyncio.current_task()
            course = _Course(self, batch, lambda: task is not None and task.cancelling() > 0)
            for payload, named in course.calls():
                try:
                    if (result := await function(payload, **named)) is not None:
                        check(result)
                except BaseException as error:
                    if not course.continues_after(error):
                        raise

        return handle_async if self.is_async else handle


class _Course:
    """The calls for one batch. If rmqd stops waiting for them at any moment, the decisions so far are correct."""

    def __init__(self, calls: TypedCalls, batch: Batch, is_cut_off: Callable[[], bool]) -> None:
        """`is_cut_off` returns whether rmqd's call has expired or was cancelled: then no further call may start."""
        self._calls = calls
        self._batch = batch.undecided()
        self._part = self._batch  # the messages of the running call
        self._is_cut_off = is_cut_off

    def calls(self) -> Iterator[CallArguments]:
        """Yield the arguments of one call after the other."""
        return self._whole() if self._calls.form.per_batch else self._one_by_one()

    def continues_after(self, error: BaseException) -> bool:
        """Record the exception of a call for one message. Returns False if the exception must be raised instead."""
        if self._part is self._batch or self._is_cut_off():
            return False
        if isinstance(error, RmqdError) or not isinstance(error, Exception):  # these errors end all calls
            return False
        decision = self._part.decisions().get(0)
        if decision is None or decision.outcome is not Outcome.RETRY:  # a chosen retry must not count as failed
            self._part.replace_decision(0, replace(decision or decision_for_error(error), error=error))
        return True

    def _one_by_one(self) -> Iterator[CallArguments]:
        batch = self._batch
        for index in range(1, len(batch)):
            batch.decide(index, AGAIN_DECISION)  # stays in force if the call for this message never starts
        for index in range(len(batch)):
            if len(batch) > 1:
                batch.replace_decision(index, None)
                self._part = batch.part([index])
            try:
                payload = self._calls.decoder.decode_payload(batch[index])
            except Exception as error:  # noqa: BLE001  any exception of a decoder concerns its message
                self._part.decide(0, self._refused(error))
            else:
                if self._is_cut_off():
                    return
                yield payload, self._named(self._part)
                if len(batch) == 1 or self._is_cut_off():
                    return
                batch.decide(index, _HANDLED)
            if self._is_cut_off():
                return
            if batch.ends_at(index):
                break
        # Handled messages become undecided again: middleware may still raise, and its exception must apply to them.
        for index in [index for index, decision in batch.decisions().items() if decision is _HANDLED]:
            batch.replace_decision(index, None)

    def _whole(self) -> Iterator[CallArguments]:
        payloads: list[Any] = []
        for index, message in enumerate(self._batch):
            try:
                payloads.append(self._calls.decoder.decode_payload(message))
            except Exception as error:  # noqa: BLE001  any exception of a decoder concerns its message
                self._batch.decide(index, self._refused(error))
                if self._batch.ends_at(index):
                    break
        if payloads and not self._is_cut_off():
            yield payloads, self._named(self._batch.undecided())

    def _named(self, part: Batch) -> dict[str, Any]:
        values: dict[ArgumentSource, Any] = {"message": part[0], "messages": list(part), "batch": part}
        others = self._calls.form.others
        if "connection" in others.values():
            values["connection"] = offset_connection()
        varying = {name: values[source] for name, source in others.items() if source != "options"}
        return {**self._calls.constants, **varying}

    def _refused(self, error: Exception) -> Decision:
        """Return the decision for an error of the decoder. Raises RmqdError if the decoder is unusable."""
        if isinstance(error, InvalidPayloadError):
            return Decision(_OUTCOMES[self._calls.on_invalid], reason=str(error), error=error)
        if isinstance(error, RmqdError):
            raise error
        return replace(decision_for_error(error), error=error)
