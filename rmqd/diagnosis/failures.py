"""What an error that comes again and again means for a queue, or for a group."""

from __future__ import annotations

from typing import Final

from rmqd.broker_errors import (
    FlowControlError,
    InvalidParameterError,
    NoPermissionError,
    SubscriptionGroupNotExistError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    TopicNotExistError,
)
from rmqd.diagnosis.causes import Problem, found
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.wire.topics import LMQ_PREFIX

GROUP_FORBIDDEN: Final = "subscription group no permission"  # PullMessageProcessor: the group's consumeEnable is false


def explain_failure(error: RmqdError, group: str = "GROUP", topic: str = "TOPIC") -> Problem:
    """The cause that an error points to; the names are for the next step."""
    cause, step = _cause(error)
    return found(cause, str(error), group=group, topic=topic, step=step)


def _cause(error: RmqdError) -> tuple[str, str]:
    """The cause, and its next step where more is known than the cause alone."""
    match error:
        case NoPermissionError() if GROUP_FORBIDDEN in error.remark:
            return "consumption_disabled", ""
        case NoPermissionError():
            return "no_permission", ""
        case SubscriptionNotExistError() | SubscriptionNotLatestError() | SubscriptionParseError():
            return (
                "subscription_mismatch",
                "`rmqd diagnose {group}` compares the members' subscriptions: they must be equal",
            )
        case SubscriptionGroupNotExistError():
            return "consumption_disabled", "create the group: `mqadmin updateSubGroup -g {group}`"
        case TopicNotExistError() if LMQ_PREFIX in error.remark:
            step = "the broker has no light message queues: enableLmq=true and enableMultiDispatch=true give it some"
            return "topic_missing", step
        case TopicNotExistError():
            return "topic_missing", ""
        case RouteNotFoundError() | InvalidParameterError():
            return "no_route", ""
        case RemotingError():
            return "broker_unreachable", ""
        case FlowControlError():
            return "pull_failed", "the broker limits requests: look at its load and its limits"
        case _:
            return "pull_failed", ""
