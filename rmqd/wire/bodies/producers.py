"""A broker's producers: the producers of one group, and of all groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rmqd.wire.bodies.base import Body, Group
from rmqd.wire.bodies.stats import Connection
from rmqd.wire.fields import Named


@dataclass(frozen=True, slots=True)
class ProducerConnection(Body):
    """The response to GET_PRODUCER_CONNECTION_LIST (204): a group's producers."""

    connection_set: tuple[Connection, ...]


@dataclass(frozen=True, slots=True)
class ProducerInfo(Body, called="a producer"):
    """A producer, with the time of its last heartbeat in milliseconds since 1970."""

    client_id: str = ""
    remote_ip: Annotated[str, Named("remoteIP")] = ""
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ProducerTableInfo(Body):
    """The response to GET_ALL_PRODUCER_INFO (328): every group's producers."""

    data: dict[Group, tuple[ProducerInfo, ...]]
