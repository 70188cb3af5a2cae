"""What the client asks of a consumer group that is registered with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rmqd.client.remoting.client import Reply
    from rmqd.wire.bodies.heartbeat import ConsumerData
    from rmqd.wire.command import RemotingCommand

__all__ = ["GroupMembership"]


class GroupMembership(Protocol):
    """A consumer group as the client sees it: its part of heartbeats, and its answers to brokers."""

    @property
    def group(self) -> str:
        """The group's name as brokers know it, namespace included."""

    def consumer_data(self) -> ConsumerData:
        """The group's part of the next heartbeat. Called for every heartbeat; must not block."""

    def on_consumer_ids_changed(self) -> None:
        """A broker said that the group's members changed. Must not block; wakes the rebalance."""

    async def on_request(self, command: RemotingCommand) -> Reply | None:
        """Answer a broker's request for this group, or return None for a request that wants no answer.

        RESET_CONSUMER_CLIENT_OFFSET, which is a push, GET_CONSUMER_STATUS_FROM_CLIENT, GET_CONSUMER_RUNNING_INFO and
        CONSUME_MESSAGE_DIRECTLY. An RmqdError becomes a SYSTEM_ERROR with the error's text as remark.
        """
