"""Headers of requests to a name server."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequestHeader(RequestHeader, code=RequestCode.GET_ROUTEINFO_BY_TOPIC):
    """Asks where a topic's queues are."""

    topic: str
    accept_standard_json_only: bool | None = None
