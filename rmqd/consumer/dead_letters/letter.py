"""One dead letter: why it is there, where it came from, and whether it can be replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.consumer.handling.copies import RMQD_EXCEPTION, RMQD_LITE_TOPIC, RMQD_REASON, kept_properties
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, UNIQ_KEY
from rmqd.wire.topics import retry_topic, topic_of_pop_retry

RMQD_REPLAY_ID: Final = "RMQD_REPLAY_ID"
"""In a copy that a replay sent: the letter's id. No two letters have one id, and a letter has the same one always."""
_BOUNCED: Final = "-1"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter of a group. `corrupt` is why its record cannot be trusted, "" where it can."""

    message: Message
    group: str
    corrupt: str = ""

    @property
    def offset(self) -> int:
        """Its place in the queue of dead letters."""
        return self.message.queue_offset

    @property
    def replay_id(self) -> str:
        """Where and when it was first stored: also another topic of this name, or another cluster, has none like it."""
        return f"{self.message.offset_msg_id}-{self.message.store_timestamp}"

    @property
    def reason(self) -> str | None:
        """What rmqd wrote down when it gave the message up; other clients write down nothing."""
        return self.message.stored_properties.get(RMQD_REASON)

    @property
    def exception(self) -> str | None:
        """The last line of the exception that it was given up for: the exception's name and text."""
        told = self.message.stored_properties.get(RMQD_EXCEPTION, "").strip()
        return told.rpartition("\n")[2].strip() or None

    @property
    def kind(self) -> str | None:
        """The reason, with the name of the exception unless the reason says all: letters are counted by it."""
        if self.reason is None:
            return None
        name = (self.exception or "").partition(":")[0].rpartition(".")[2]
        is_told_by_it = name in ("", "DeadLetter") or name in self.reason
        return self.reason if is_told_by_it else f"{self.reason} ({name})"

    @property
    def origin_topic(self) -> str | None:
        """The topic that the message was first sent to; None where the letter does not say it."""
        told = self.message.stored_properties.get(RETRY_TOPIC)
        if told is None or told == retry_topic(self.group):
            return None
        return topic_of_pop_retry(self.group, told) or told

    @property
    def refusal(self) -> str:
        """Why it cannot be replayed; "" where it can."""
        if self.corrupt:
            return f"its record cannot be trusted: {self.corrupt}"
        if RMQD_LITE_TOPIC in self.message.stored_properties:
            return "it is of a lite topic, which a retry topic cannot put it back into"
        return "" if self.origin_topic else f"it does not say which topic it came from ({RETRY_TOPIC})"

    @property
    def is_bounced_copy(self) -> bool:
        """Whether it is no letter of its own, but what a replay sent to the retry topic while the group held locks.

        The broker dead-letters that at once, with delay level -1. What a member gives up after a replay has been
        delivered: a broker has counted that, or rmqd left the delay level out.
        """
        stored = self.message.stored_properties
        return RMQD_REPLAY_ID in stored and stored.get(DELAY) == _BOUNCED and self.message.reconsume_times == 0

    @property
    def sent_back_key(self) -> str:
        """By what the broker's copy of it is known, once it was sent back."""
        origin = self.message.stored_properties.get(ORIGIN_MESSAGE_ID) or self.message.offset_msg_id
        return _copy_key(self.message, origin, self.message.reconsume_times + 1)

    def copied_properties(self) -> dict[str, str]:
        """The properties of the message as it is sent to be handled again: its own ones, and RMQD_REPLAY_ID."""
        return kept_properties(self.message, self.origin_topic or "") | {RMQD_REPLAY_ID: self.replay_id}


def sent_back_key(copy: Message) -> str:
    """Of what letter a broker's copy is: the `sent_back_key` of that letter."""
    return _copy_key(copy, copy.stored_properties.get(ORIGIN_MESSAGE_ID, ""), copy.reconsume_times)


def _copy_key(message: Message, origin: str, reconsume_times: int) -> str:
    return f"{message.stored_properties.get(UNIQ_KEY, '')} {origin} {reconsume_times}"
