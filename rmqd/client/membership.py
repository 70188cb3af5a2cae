"""A registered consumer group's interface to the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rmqd.client.remoting.client import Reply
    from rmqd.wire.bodies.heartbeat import ConsumerData
    from rmqd.wire.command import RemotingCommand

__all__ = ["GroupMembership"]


class GroupMembership(Protocol):
    """A consumer group as the client sees it: its part of heartbeats, and its responses to brokers."""

    @property
    def group(self) -> str:
        """The group's name as brokers know it, including the namespace."""

    def consumer_data(self) -> ConsumerData:
        """Return the group's part of the next heartbeat. Called for every heartbeat; must not block."""

    def on_consumer_ids_changed(self) -> None:
        """Called when a broker reports that the group's members changed. Wakes the rebalance; must not block."""

    async def on_request(self, command: RemotingCommand) -> Reply | None:
        """Answer a broker's request for this group. Returns None if the request wants no response.

        Requests: RESET_CONSUMER_CLIENT_OFFSET, which is a push, GET_CONSUMER_STATUS_FROM_CLIENT,
        GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY. An RmqdError becomes SYSTEM_ERROR with its text as remark.
        """
