"""The choice of dead letters for a command."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.consumer.dead_letters.letter import Letter


@dataclass(frozen=True, slots=True)
class Choice:
    """Conditions for letters; without conditions, all letters are chosen.

    Times are Unix milliseconds and compared with the time when the letter was stored. A letter must have one of the
    ids, keys or tags, and all of the properties. `reason` is a part of the reason or of the exception's last line,
    ignoring case.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    ids: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    properties: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    def takes(self, letter: Letter) -> bool:
        """Whether a letter meets all conditions."""
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
