"""Whether a failed send may succeed a moment later."""

from __future__ import annotations

from collections.abc import Container

from rmqd.broker_errors import BrokerError, BrokerFailureError
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError


def may_pass(error: RmqdError, served: Container[str]) -> bool:
    """Return whether to try again. `served` are the topics of earlier sends.

    A missing route for such a topic is temporary. For others it is final, because waiting does not create a topic.
    """
    if isinstance(error, RouteNotFoundError):
        return error.topic in served
    if isinstance(error, BrokerError):
        return error.retriable or isinstance(error, BrokerFailureError)
    return isinstance(error, RemotingError)
