"""Whether a group pops or pulls a topic: the setting of each broker of the topic, and changes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.broker_errors import TopicNotExistError
from rmqd.client.api.admin import topic_config
from rmqd.client.api.request_mode import request_modes, set_request_mode
from rmqd.errors import RmqdError
from rmqd.wire.bodies.settings import SetMessageRequestModeRequestBody

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A broker's setting for a group and a topic, before and after.

    On a broker without a setting, groups pull.
    """

    broker: str
    now: SetMessageRequestModeRequestBody
    then: SetMessageRequestModeRequestBody

    @property
    def is_due(self) -> bool:
        """Whether the settings differ."""
        return self.now != self.then


async def plan_mode(brokers: Brokers, wanted: SetMessageRequestModeRequestBody) -> list[ModeChange]:
    """Return the change on each broker that has the topic. Raises RmqdError if a broker does not answer."""
    remoting = brokers.client.remoting
    topics = await brokers.ask(lambda address: topic_config(remoting, address, wanted.topic))
    for error in topics.errors.values():
        if not isinstance(error, TopicNotExistError):
            raise error
    if not topics.by_broker:
        raise RmqdError(f"no broker has topic {wanted.topic}; run `rmqd topics list` to see all")
    modes = await brokers.ask(lambda address: request_modes(remoting, address), topics.by_broker)
    for error in modes.errors.values():
        raise error
    key = wanted.topic, wanted.consumer_group
    never_set = SetMessageRequestModeRequestBody(*key)
    return [ModeChange(name, table.get(key, never_set), wanted) for name, table in modes.by_broker.items()]


async def carry_out(brokers: Brokers, changes: Sequence[ModeChange]) -> Mapping[str, RmqdError]:
    """Apply the due changes. Returns the errors by broker."""
    due = {change.broker: change.then for change in changes if change.is_due}

    async def change_one(address: str) -> None:
        await set_request_mode(brokers.client.remoting, address, due[brokers.names[address]])

    return (await brokers.ask(change_one, due)).errors
