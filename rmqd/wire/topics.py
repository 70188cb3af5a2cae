"""Topic and group names: RocketMQ's rules, names of retry and dead letter topics, and namespaces of shared clusters."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final, TypeVar

from rmqd.errors import InvalidNameError

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
LIGHT_QUEUE_ID: Final = 0  # a light message queue has only this queue
MAX_TOPIC_LENGTH: Final = 127
MAX_GROUP_LENGTH: Final = 120
SUBSCRIPTION_ALL: Final = "*"
DEFAULT_TOPIC: Final = "TBW102"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"  # appended to the cluster's name in the topic of request-reply responses
SYSTEM_TOPIC_PREFIX: Final = "RMQ_SYS_"  # prefix of some system topics that users may send to
# Pulls that belong to no group use this group, like mqadmin. Every broker has it, so such pulls do not create a group.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
_SYSTEM_TOPICS: Final = frozenset(
    "TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC RMQ_SYS_TRACE_TOPIC "
    "TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT CHECKPOINT_TOPIC".split()
)
_SYSTEM_GROUPS: Final = frozenset(
    "DEFAULT_CONSUMER DEFAULT_PRODUCER TOOLS_CONSUMER SCHEDULE_CONSUMER FILTERSRV_CONSUMER __MONITOR_CONSUMER "
    "CLIENT_INNER_PRODUCER SELF_TEST_P_GROUP SELF_TEST_C_GROUP CID_ONS-HTTP-PROXY CID_ONSAPI_PERMISSION "
    "CID_ONSAPI_OWNER CID_ONSAPI_PULL".split()
)
_RESERVED_GROUPS: Final = frozenset({"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"})


def retry_topic(group: str) -> str:
    """Return the topic that stores the group's messages after a send-back, until the group retries them."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic that holds the group's dead letters."""
    return DLQ_PREFIX + group


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the first form of the pop retry topic, which holds messages of `topic` not acknowledged in time."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    """Return the second form of the pop retry topic, which brokers with enableRetryTopicV2 use."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def topic_of_pop_retry(group: str, retry: str) -> str | None:
    """Return the original topic of the messages in the pop retry topic `retry`; None if `retry` is another topic."""
    for prefix in (pop_retry_topic(group, ""), pop_retry_topic_v2(group, "")):
        if retry.startswith(prefix) and retry != prefix:
            return retry.removeprefix(prefix)
    return None


def original_topic(retry: str, named: str | None, origin: str | None) -> str:
    """Return the topic that a message in the retry topic `retry` was first sent to.

    `named` is the message's property RETRY_TOPIC, which names a pop retry topic if the message was sent back from
    there. `origin` is the original topic if `retry` is a pop retry topic, else None.
    """
    if named is None:
        return origin or retry
    return named[len(retry) + 1 :] if named != retry and named.startswith(retry) else named


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def is_light_queue(topic: str) -> bool:
    """Return whether the topic is a light message queue. Java: `MixAll.isLmq`."""
    return topic.startswith(LMQ_PREFIX)


def is_system_topic(topic: str) -> bool:
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group in _SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def check_topic(topic: str) -> str:
    """Return `topic` if it is a valid topic name, or raise InvalidNameError with the violated rule."""
    return _check("topic", topic, MAX_TOPIC_LENGTH)


def check_group(group: str) -> str:
    """Return `group` if it is a valid group name, or raise InvalidNameError with the violated rule."""
    _check("group", group, MAX_GROUP_LENGTH)
    if group in _RESERVED_GROUPS:
        raise InvalidNameError(f"the group name {group} is reserved by RocketMQ; choose another")
    return group


def wrap_namespace(resource: str, namespace: str) -> str:
    """Return the name of a topic or group with the namespace, as brokers know it. System names are unchanged."""
    if not namespace or not resource or is_system_topic(resource) or is_system_group(resource):
        return resource
    prefix, plain = _split_prefix(resource)
    head = f"{namespace}%"
    return resource if plain.startswith(head) else f"{prefix}{head}{plain}"


def unwrap_namespace(resource: str, namespace: str) -> str:
    """Return the name of a topic or group without the namespace, as users of the shared cluster know it."""
    if not namespace:
        return resource
    prefix, plain = _split_prefix(resource)
    head = f"{namespace}%"
    plain = plain.removeprefix(head)
    if prefix == RETRY_PREFIX and head in plain:  # pop retry topic: the topic follows the group, after _ or +
        plain = plain.replace(f"_{head}", "_").replace(f"+{head}", "+")
    return prefix + plain


def _split_prefix(resource: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource.removeprefix(prefix)
    return "", resource


def _check(kind: str, name: str, max_length: int) -> str:
    if not name.strip():
        raise InvalidNameError(f"a {kind} name must not be empty")
    if not _ALLOWED.fullmatch(name):
        raise InvalidNameError(
            f"the {kind} name {name!r} contains a character that RocketMQ refuses; "
            "expected letters a-z and A-Z, digits, and % | - _"
        )
    if len(name) > max_length:
        raise InvalidNameError(f"the {kind} name {name!r} has {len(name)} characters; expected at most {max_length}")
    return name


T = TypeVar("T")


def without_namespace(value: T, namespace: str) -> T:
    """Return a copy of `value` without the namespace in its texts, even in names in the middle of a broker's remark.

    Dicts, sequences, sets and frozen dataclasses are converted recursively. Other values are unchanged.
    """
    return _plain(value, namespace) if namespace else value


def _plain(value: Any, namespace: str) -> Any:
    if value is None or isinstance(value, int | float):  # the usual case in a snapshot
        return value
    if isinstance(value, str):
        return _plain_text(value, namespace)
    if isinstance(value, dict):
        return {_plain(key, namespace): _plain(inner, namespace) for key, inner in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        make = getattr(value, "_make", type(value))  # a NamedTuple's type expects one argument for each field
        return make([_plain(inner, namespace) for inner in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        plain = {name: _plain(inner, namespace) for name, inner in fields.items()}
        changed = {name: inner for name, inner in plain.items() if inner is not fields[name]}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _plain_text(text: str, namespace: str) -> str:
    if (head := f"{namespace}%") not in text:
        return text
    names = rf"{RETRY_PREFIX}{re.escape(head)}[\w%|+-]*|(?<![\w-]){re.escape(head)}"  # a pop retry topic has two heads
    return re.sub(names, lambda found: unwrap_namespace(found[0], namespace), text)
