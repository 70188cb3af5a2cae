"""The settings of the broker and the name server under RocketMQ's names, and the attributes of topics.

`rmqd broker --setting` and UPDATE_BROKER_CONFIG change the broker's settings. A request changes topic attributes with
a text such as `+key=value,-key` (Java: `AttributeParser`, `AttributeUtil`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, NamedTuple, Self

from rmqd.errors import RmqdError
from rmqd.wire.bodies import config_bodies


class UnknownSettingError(RmqdError):
    """A setting is unknown, or has an invalid value."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """The base of BrokerSettings and NameServerSettings. Administrators read and write the values as text."""

    def changed(self, values: Mapping[str, str]) -> Self:
        """Return a copy with changed values. Raises UnknownSettingError if a name is unknown or a value is invalid."""
        kinds = self._kinds()
        new: dict[str, Any] = {}
        for name, text in values.items():
            kind = kinds.get(name)
            if kind is None:
                raise UnknownSettingError(f"unknown setting {name!r}; expected one of {', '.join(kinds)}")
            new[name] = _parsed(name, text, kind)
        return replace(self, **new)

    def updated(self, values: Mapping[str, str]) -> tuple[Self, dict[str, str]]:
        """Return a copy with the valid `values` applied, and a dict of the unknown or invalid `values`.

        As in RocketMQ, invalid values are not an error, and every text except `true` sets a bool setting to false.
        """
        kinds, new, ignored = self._kinds(), dict[str, Any](), dict[str, str]()
        for name, text in values.items():
            try:
                kind = kinds[name]
                new[name] = text.lower() == "true" if kind is bool else _parsed(name, text, kind)
            except (KeyError, UnknownSettingError):
                ignored[name] = text
        return replace(self, **new), ignored

    def as_properties(self) -> dict[str, str]:
        """Return every setting as text, as in the responses to GET_BROKER_CONFIG and GET_NAMESRV_CONFIG."""
        values = asdict(self).items()
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values}

    def _kinds(self) -> dict[str, type]:
        return {field.name: type(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class BrokerSettings(_Settings):
    """The broker's settings: names and defaults of `BrokerConfig` and `MessageStoreConfig`, except as noted."""

    brokerClusterName: str = "DefaultCluster"
    brokerName: str = "broker-a"  # RocketMQ's default: the machine's name
    brokerIP1: str = ""  # host for clients, read at start; empty: the listening host, or this machine's IP for 0.0.0.0
    brokerPermission: int = 6
    autoCreateTopicEnable: bool = True
    autoCreateSubscriptionGroup: bool = True
    defaultTopicQueueNums: int = 8
    enablePropertyFilter: bool = True  # RocketMQ's default: false; true lets users try SQL92 filters at once
    useServerSideResetOffset: bool = True
    notifyConsumerIdsChangedEnable: bool = True
    channelExpiredTimeout: int = 120 * 1000  # milliseconds; read at start
    litePullMessageEnable: bool = True
    longPollingEnable: bool = True
    shortPollingTimeMills: int = 1000
    maxTransferCountOnMessageInMemory: int = 32  # messages in one pull or pop response
    maxTransferBytesOnMessageInMemory: int = 256 * 1024
    maxMessageSize: int = 4 * 1024 * 1024
    messageDelayLevel: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    timerMaxDelaySec: int = 3 * 24 * 3600
    recallMessageEnable: bool = False
    enableLmq: bool = False  # light message queues
    enableMultiDispatch: bool = False  # a message is also added to the light queues that its properties name
    appendTopicForTimerDeleteKey: bool = False  # a recall affects only messages of the same topic
    popFromRetryProbability: int = 20  # percentage of pops that read the retry topic before the topic itself
    popFromRetryProbabilityForPriority: int = 0  # like popFromRetryProbability, for pops of a priority topic
    priorityOrderAsc: bool = True  # the last queue has the highest priority
    useSeparateRetryQueue: bool = False  # each queue of a topic has its own queue in the pop retry topic
    popPollingSize: int = 1024  # limit of held pops for each queue and group
    maxPopPollingSize: int = 100000  # limit of held pops in total
    reviveQueueNum: int = 8  # used only as part of receipt handles
    enableRetryTopicV2: bool = False
    retrieveMessageFromPopRetryTopicV1: bool = True
    fileReservedTime: int = 72  # hours
    maxStoreSize: int = 0  # bytes; 0: 256 MiB in memory, 1 GiB in a folder. RocketMQ limits the disk's usage instead


@dataclass(frozen=True, slots=True)
class NameServerSettings(_Settings):
    """The name server's settings (`NamesrvConfig`)."""

    orderMessageEnable: bool = False
    enableTopicList: bool = True
    enableAllTopicList: bool = True


def _parsed(name: str, text: str, kind: type) -> object:
    if kind is str:
        return text
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text)
        except ValueError:
            pass
    raise UnknownSettingError(f"{name}={text!r}: expected {'true or false' if kind is bool else 'an integer'}")


_LONG: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_LEAST: Final = -1


class TopicAttributeError(RmqdError):
    """A change of a topic's attributes is invalid. The error text is the same as in RocketMQ's broker."""


class _Attribute(NamedTuple):
    """The rules for a topic attribute: one of `values`, in Java's order; if empty, an integer from -1 to `most`."""

    changeable: bool
    values: tuple[str, ...] = ()
    most: int = 2**63 - 1


_ATTRIBUTES: Final = {
    config_bodies.QUEUE_TYPE: _Attribute(False, ("SimpleCQ", config_bodies.BATCH_QUEUE_TYPE)),
    config_bodies.CLEANUP_POLICY: _Attribute(False, config_bodies.CLEANUP_POLICIES),
    config_bodies.MESSAGE_TYPE: _Attribute(True, config_bodies.MESSAGE_TYPES),
    "reserve.time": _Attribute(True),
    "lite.topic.expiration": _Attribute(True, most=30 * 24 * 60),
}


def parse_attributes(text: str) -> dict[str, str]:
    """Parse attribute changes such as `+key=value,-key`. The keys keep their sign. Raises TopicAttributeError."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise TopicAttributeError(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise TopicAttributeError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise TopicAttributeError(f"key duplication: {key}")
        changes[key] = value.partition("=")[0]
    return changes


def apply_attribute_changes(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's `current` attributes (None for a new topic) with `changes`. Raises TopicAttributeError."""
    seen = set()
    for signed in changes:
        key = signed[1:]
        if not key or "+" in key or "-" in key:
            raise TopicAttributeError("kv string format wrong.")
        if key in seen:
            raise TopicAttributeError(f"alter duplication key. key: {key}")
        seen.add(key)
        _check_sign(signed[0], key, current)
    result = dict(current or {})
    for signed, value in changes.items():
        _check_value(signed, value, new=current is None)
        if signed[0] == "+":
            result[signed[1:]] = value
        else:
            del result[signed[1:]]
    return result


def _check_sign(sign: str, key: str, current: Mapping[str, str] | None) -> None:
    if current is None and sign != "+":
        raise TopicAttributeError(f"only add attribute is supported while creating topic. key: {key}")
    if current is not None and sign == "-" and key not in current:
        raise TopicAttributeError(f"attempt to delete a nonexistent key: {key}")
    if sign not in "+-":
        raise TopicAttributeError(f"wrong format key: {key}")


def _check_value(signed: str, value: str, *, new: bool) -> None:
    key = signed[1:]
    attribute = _ATTRIBUTES.get(key)
    if attribute is None:
        raise TopicAttributeError(f"unsupported key: {key}")
    if not new and not attribute.changeable:
        raise TopicAttributeError(f"attempt to update an unchangeable attribute. key: {key}")
    if signed[0] == "-":
        return
    if attribute.values:
        if value not in attribute.values:
            raise TopicAttributeError(f"value is not in set: [{', '.join(attribute.values)}]")
    elif not _LONG.fullmatch(value):
        raise TopicAttributeError(f'For input string: "{value}"')
    elif not _LEAST <= int(value) <= attribute.most:
        raise TopicAttributeError(f"value is not in range({_LEAST}, {attribute.most})")
