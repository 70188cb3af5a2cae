"""Requests to name servers for a topic's route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.client.api.request import request
from rmqd.client.remoting.parsing import parsed
from rmqd.wire.bodies.route import TopicRouteData
from rmqd.wire.headers.name_server import GetRouteInfoRequestHeader

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient


async def get_route(remoting: RemotingClient, address: str, topic: str) -> TopicRouteData:
    """Return a topic's route. Raises TopicNotExistError if the name server does not know the topic."""
    header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
    reply = await request(remoting, address, header)
    return await parsed(TopicRouteData.from_json, reply.body)
