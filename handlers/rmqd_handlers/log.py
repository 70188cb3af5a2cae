"""`log`: one log line per message, for a first try, a test, or an audit trail in the journal."""

from __future__ import annotations

import logging
from typing import Literal

from rmqd import Batch, Message
from rmqd_handlers.option_kinds import HandlerOptions, SizeBytes, option

logger = logging.getLogger(__name__)


class Log:
    """Writes one line per message to the daemon's log, and acknowledges the message."""

    class Options(HandlerOptions):
        level: Literal["debug", "info", "warning", "error"] = option("info", "level of the lines")
        body: Literal["never", "always"] = option(
            "never", "whether to log the body too; bodies often contain data that must not be logged"
        )
        body_limit: SizeBytes = option("256B", "how much of a longer body is logged")

    def __init__(self, options: Options) -> None:
        self._level = logging.getLevelNamesMapping()[options.level.upper()]
        self._body_limit_bytes = options.body_limit if options.body == "always" else None

    def handle(self, batch: Batch) -> None:
        """Log the messages. Synchronous, so that a log pipe without a reader blocks this thread, not the event loop."""
        if not logger.isEnabledFor(self._level):
            return
        for message in batch:
            logger.log(self._level, "message.handled", extra=self._fields(message))

    def _fields(self, message: Message) -> dict[str, object]:
        fields: dict[str, object] = {
            "topic": message.topic,
            "broker": message.broker_name,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "msg_id": message.msg_id,
            "keys": message.keys,
            "tags": message.tags,
            "reconsume_times": message.reconsume_times,
        }
        if self._body_limit_bytes is not None:
            body = bytes(message.body)
            fields["body"] = body[: self._body_limit_bytes].decode(errors="backslashreplace")
            fields["body_bytes"] = len(body)
        return fields
