"""How failed messages are retried in a replay, without the brokers.

Brokers would apply their delay levels, which take hours, and would leave messages in topics that are removed at the
end. So the message is handled again in this process: after some seconds, or in place in an orderly group. After its
last attempt, or if the handler asks for a dead letter, the message is written to a file.
"""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from rmqd.plain_text import describe
from rmqd.replaying.plan import Failures
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)


class ReplayWaysBack:
    """The retries of a shadow group: N retries make N + 1 attempts."""

    def __init__(self, failures: Failures, retries: int) -> None:
        self.limit = "all attempts of the replay failed"
        self._failures = failures
        self._retries = retries

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Return whether no attempt follows this one."""
        return message.reconsume_times - not_counted >= self._retries

    def delay_level(self, message: Message, asked: int) -> int:
        """Return the requested level, which has no effect here: no broker delays the message."""
        return asked

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Return False: no broker takes the message, so the consumer counts the attempt and handles it again."""
        return False

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Write the message's offset and the reason to the file. Returns False if that fails."""
        failure = {
            "msg_id": message.msg_id,
            "topic": message.topic,
            "broker": message.broker_name,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "keys": message.keys,
            "reason": reason,
            "exception": None if error is None else describe(error),
            "attempts": message.reconsume_times + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        try:
            self._failures.add(failure)
        except OSError as fault:
            log.error("replay.failure_not_written", path=str(self._failures.path), error=str(fault))  # noqa: TRY400
            return False
        return True
