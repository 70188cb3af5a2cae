"""Heartbeats of members and producers, and notifications of other members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqd.wire.bodies.heartbeat_data import ConsumerData, HeartbeatData, SubscriptionData
from rmqd.wire.command import RemotingCommand
from tests.broker.peer import Peer

HEART_BEAT, UNREGISTER, CONSUMER_LIST, IDS_CHANGED = 34, 35, 38, 40


def consumer(group: str = "g", *topics: str, sub_version: int = 1, **changed: Any) -> ConsumerData:
    """Return a group for a heartbeat. The default topic is T."""
    subscriptions = (SubscriptionData(topic, sub_version=sub_version) for topic in topics or ("T",))
    return ConsumerData(group, tuple(subscriptions), **changed)


async def beat(
    peer: Peer,
    client_id: str,
    *consumers: ConsumerData,
    producers: Iterable[str] = (),
    fingerprint: int = 0,
    without_sub: bool = False,
    **header: Any,
) -> RemotingCommand:
    """Send a heartbeat."""
    data = HeartbeatData(client_id, consumers, tuple(producers), fingerprint, without_sub)
    return await peer.call(HEART_BEAT, {}, data.to_json(), **header)


async def members(peer: Peer, group: str = "g") -> RemotingCommand:
    """Request the members of a group."""
    return await peer.call(CONSUMER_LIST, {"consumerGroup": group})


async def heard(peer: Peer) -> list[str]:
    """Return the groups whose changes the peer was notified of. A request ensures that all notifications arrived."""
    await peer.call(UNREGISTER, {"clientID": "nobody"})
    told = [request.ext_fields["consumerGroup"] for request in peer.requests if request.code == IDS_CHANGED]
    peer.requests.clear()
    return told
