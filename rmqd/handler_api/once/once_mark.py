"""The record of a handled message in the table `rmqd_handled`."""

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
        """The primary key: group, topic and message id. The topic is `message.identity`, which includes the cluster."""
        return self.group, str(self.message.identity), self.message.first_copy_id

    @property
    def former_row(self) -> tuple[str, str, str]:
        """The primary key that rmqd 0.1.0 wrote. A replay has an empty topic, because it must ignore these records."""
        return self.group, "" if self.message.identity.replay else self.message.topic, self.message.first_copy_id
