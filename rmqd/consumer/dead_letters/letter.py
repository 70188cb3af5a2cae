"""One dead letter: its reason, its original topic, and whether it can be replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.consumer.handling.copies import RMQD_EXCEPTION, RMQD_LITE_TOPIC, RMQD_REASON, kept_properties
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, UNIQ_KEY
from rmqd.wire.topics import retry_topic, topic_of_pop_retry

RMQD_REPLAY_ID: Final = "RMQD_REPLAY_ID"
"""Property of a copy that a replay sent: the letter's id, which is unique and never changes."""
_BOUNCED: Final = "-1"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter of a group. `corrupt` is why its record cannot be trusted; empty if it can."""

    message: Message
    group: str
    corrupt: str = ""

    @property
    def offset(self) -> int:
        """Its offset in the queue of dead letters."""
        return self.message.queue_offset

    @property
    def replay_id(self) -> str:
        """The place and time of its first storage: unique even for a recreated topic or another cluster."""
        return f"{self.message.offset_msg_id}-{self.message.store_timestamp}"

    @property
    def reason(self) -> str | None:
        """The reason that rmqd recorded; None for letters of other clients."""
        return self.message.stored_properties.get(RMQD_REASON)

    @property
    def exception(self) -> str | None:
        """The name and text of the exception behind the letter: the last line of its traceback."""
        told = self.message.stored_properties.get(RMQD_EXCEPTION, "").strip()
        return told.rpartition("\n")[2].strip() or None

    @property
    def kind(self) -> str | None:
        """The reason for counts, with the name of the exception unless the reason contains it."""
        if self.reason is None:
            return None
        name = (self.exception or "").partition(":")[0].rpartition(".")[2]
        is_told_by_it = name in ("", "DeadLetter") or name in self.reason
        return self.reason if is_told_by_it else f"{self.reason} ({name})"

    @property
    def origin_topic(self) -> str | None:
        """The topic that the message was first sent to; None if the letter does not say it."""
        told = self.message.stored_properties.get(RETRY_TOPIC)
        if told is None or told == retry_topic(self.group):
            return None
        return topic_of_pop_retry(self.group, told) or told

    @property
    def refusal(self) -> str:
        """Why it cannot be replayed; empty if it can."""
        if self.corrupt:
            return f"its record cannot be trusted: {self.corrupt}"
        if RMQD_LITE_TOPIC in self.message.stored_properties:
            return "it is from a lite topic, and a retry topic cannot return it there"
        return "" if self.origin_topic else f"it does not say which topic it came from ({RETRY_TOPIC})"

    @property
    def is_bounced_copy(self) -> bool:
        """Whether it is not a separate letter, but a replay's copy that the broker bounced because of queue locks.

        The broker dead-letters such a copy at once, with delay level -1. A message that a member dead-letters after a
        replay was delivered before: a broker has counted that, or rmqd has removed the delay level.
        """
        stored = self.message.stored_properties
        return RMQD_REPLAY_ID in stored and stored.get(DELAY) == _BOUNCED and self.message.reconsume_times == 0

    @property
    def sent_back_key(self) -> str:
        """The key of the copy that the broker makes by send-back."""
        origin = self.message.stored_properties.get(ORIGIN_MESSAGE_ID) or self.message.offset_msg_id
        return _copy_key(self.message, origin, self.message.reconsume_times + 1)

    def copied_properties(self) -> dict[str, str]:
        """Return the properties of a copy for a replay: the message's properties and RMQD_REPLAY_ID."""
        return kept_properties(self.message, self.origin_topic or "") | {RMQD_REPLAY_ID: self.replay_id}


def sent_back_key(copy: Message) -> str:
    """Return the `sent_back_key` of the original letter of a broker's copy."""
    return _copy_key(copy, copy.stored_properties.get(ORIGIN_MESSAGE_ID, ""), copy.reconsume_times)


def _copy_key(message: Message, origin: str, reconsume_times: int) -> str:
    return f"{message.stored_properties.get(UNIQ_KEY, '')} {origin} {reconsume_times}"
