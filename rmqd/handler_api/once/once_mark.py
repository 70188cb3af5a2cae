"""The record of a handled message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.wire.messages.message import Message

TABLE: Final = "rmqd_handled"


@dataclass(frozen=True, slots=True)
class HandledMark:
    """The record that a group has handled a message."""

    group: str
    message: Message

    @property
    def row(self) -> tuple[str, str, str]:
        """The primary key: group, topic and id. The topic is the text of its identity, so it also names the cluster."""
        return self.group, str(self.message.identity), self.message.id_of_all_copies

    @property
    def former_row(self) -> tuple[str, str, str]:
        """The primary key that rmqd 0.1.0 wrote. In a replay the topic is empty, because messages are handled again."""
        return self.group, "" if self.message.identity.replay else self.message.topic, self.message.id_of_all_copies
