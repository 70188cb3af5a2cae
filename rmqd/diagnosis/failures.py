"""The meaning of a repeated error for a queue or a group."""

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
    """Return the problem that an error indicates. `group` and `topic` are for the next step."""
    cause, step = _cause(error)
    return found(cause, str(error), group=group, topic=topic, step=step)


def _cause(error: RmqdError) -> tuple[str, str]:
    """Return the cause, and a next step if the error allows a more precise one."""
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
            step = "set enableLmq=true and enableMultiDispatch=true on the broker: it has no light message queues"
            return "topic_missing", step
        case TopicNotExistError():
            return "topic_missing", ""
        case RouteNotFoundError() | InvalidParameterError():
            return "no_route", ""
        case RemotingError():
            return "broker_unreachable", ""
        case FlowControlError():
            return "pull_failed", "check the broker's load and limits: it limits requests"
        case _:
            return "pull_failed", ""
