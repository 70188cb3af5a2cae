"""Whether a send that failed may succeed a moment later."""

from __future__ import annotations

from collections.abc import Container

from rmqd.broker_errors import BrokerError, BrokerFailureError
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError


def may_pass(error: RmqdError, served: Container[str]) -> bool:
    """Whether to try again. `served` are the topics that were sent to before.

    That one of them has no route is a matter of time; of any other topic it is an answer, as waiting makes no topic.
    """
    if isinstance(error, RouteNotFoundError):
        return error.topic in served
    if isinstance(error, BrokerError):
        return error.retriable or isinstance(error, BrokerFailureError)
    return isinstance(error, RemotingError)
