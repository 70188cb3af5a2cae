"""What is written of a handled message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.wire.messages.message import Message

TABLE: Final = "rmqd_handled"


@dataclass(frozen=True, slots=True)
class Mark:
    """That a group has handled a message."""

    group: str
    message: Message

    @property
    def row(self) -> tuple[str, str, str]:
        """The primary key: group, topic and id. The topic is that which the message was first sent to."""
        return self.group, self.message.topic, self.message.lasting_id
