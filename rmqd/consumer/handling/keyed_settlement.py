"""Settlement of a batch in a group with `order_by`: a failed message is retried here, in the order of its key."""

from __future__ import annotations

from collections.abc import Callable

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.orderly_settlement import rest_seconds
from rmqd.consumer.handling.settlement import ConfirmSettled, Failed, Settlement, given_up
from rmqd.consumer.handling.verdict import EXPIRED, dead_letter_cause
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.services import WaysBack
from rmqd.consumer.stats.counters import TopicStats
from rmqd.handler_api import Decision
from rmqd.wire.messages.message import Message


class KeyedSettlement(Settlement):
    """Carries out a handler's decisions about a batch with at most one message of each key.

    A failed message is handed to the handler again after a suspension, with one more attempt counted. Its key waits,
    and the queue continues with other keys. The message is dead-lettered and passed if the handler decided so or its
    attempts are used up. If no broker accepts the dead letter, the message is retried.
    """

    def __init__(
        self,
        send_back: WaysBack,
        options: ConsumerOptions,
        resubmit: Callable[[ProcessQueue], None],
        clock: Clock,
        confirm_settled: ConfirmSettled | None,
    ) -> None:
        super().__init__(send_back, options.delay_level_when_next_consume, resubmit, clock, confirm_settled)
        self._usual_seconds = options.suspend_current_queue_time_seconds

    async def _return_one(
        self, stats: TopicStats, message: Message, decision: Decision, error: BaseException | None
    ) -> str | None:
        level = self._delay_level if decision.delay_level is None else decision.delay_level
        reason = given_up(self._send_back, message, decision, level)
        if reason is not None and await self._send_back.dead_letter(message, reason, decision.error or error):
            stats.of(message).dead_lettered(dead_letter_cause(decision, level), reason)
            return "dead_lettered"
        message.count_attempt()
        stats.of(message).count("expired" if error is EXPIRED else "retried")
        return None

    def _set_aside(self, process_queue: ProcessQueue, failed: list[Failed]) -> None:
        """Suspend each message for as long as its own error asks for."""
        resting: dict[float, list[Message]] = {}
        for message, error in failed:
            resting.setdefault(rest_seconds(error, self._usual_seconds), []).append(message)
        for seconds, messages in resting.items():
            self._postpone(process_queue, messages, seconds)
