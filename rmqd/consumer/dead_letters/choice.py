"""Which dead letters a command is about."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.consumer.dead_letters.letter import Letter


@dataclass(frozen=True, slots=True)
class Choice:
    """What letters must be like; by default all are meant.

    Times are Unix milliseconds and about when a letter came. Of several ids, keys or tags one must be the letter's; of
    properties each. `reason` is a part of the reason or of the exception's last line, in small or capital letters.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    ids: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    properties: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    def takes(self, letter: Letter) -> bool:
        """Whether a letter is meant."""
        message = letter.message
        stored = message.stored_properties
        if self.since_ms is not None and message.store_timestamp < self.since_ms:
            return False
        if self.until_ms is not None and message.store_timestamp >= self.until_ms:
            return False
        if self.ids and self.ids.isdisjoint((message.msg_id, message.offset_msg_id)):
            return False
        if self.keys and self.keys.isdisjoint((message.keys or "").split()):
            return False
        if self.tags and message.tags not in self.tags:
            return False
        if any(stored.get(name) != value for name, value in self.properties):
            return False
        told = f"{letter.reason or ''}\n{letter.exception or ''}"
        return self.reason.casefold() in told.casefold()
