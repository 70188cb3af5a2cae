"""The broker's settings, under RocketMQ's names: for UPDATE_BROKER_CONFIG and `rmqd broker --setting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from rmqd.errors import RmqdError

MASTER_ID: Final = 0


class UnknownSettingError(RmqdError):
    """A setting is unknown, or has an invalid value."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings under RocketMQ's names. Administrators see the values as text."""

    def changed(self, values: Mapping[str, str]) -> Self:
        """Return a copy with changed values. Raises UnknownSettingError with the expected names or values."""
        kinds = self._kinds()
        new: dict[str, Any] = {}
        for name, text in values.items():
            kind = kinds.get(name)
            if kind is None:
                raise UnknownSettingError(f"unknown setting {name!r}; expected one of {', '.join(kinds)}")
            new[name] = _parsed(name, text, kind)
        return replace(self, **new)

    def updated(self, values: Mapping[str, str]) -> tuple[Self, dict[str, str]]:
        """Return a copy with the valid values, and the rest, which RocketMQ ignores.

        As in RocketMQ, a flag is false unless the value is `true`.
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
        return {field.name: _written(getattr(self, field.name)) for field in fields(self)}

    def _kinds(self) -> dict[str, type]:
        return {field.name: type(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class BrokerSettings(_Settings):
    """The broker's settings: names and defaults of `BrokerConfig` and `MessageStoreConfig`, except as noted."""

    brokerClusterName: str = "DefaultCluster"
    brokerName: str = "broker-a"  # RocketMQ: the machine's name
    brokerIP1: str = ""  # the announced address; empty: the listening or the machine's address; read at start
    brokerPermission: int = 6
    autoCreateTopicEnable: bool = True
    autoCreateSubscriptionGroup: bool = True
    defaultTopicQueueNums: int = 8
    enablePropertyFilter: bool = True  # RocketMQ: false; here SQL92 can be tried out
    useServerSideResetOffset: bool = True
    notifyConsumerIdsChangedEnable: bool = True
    channelExpiredTimeout: int = 120 * 1000  # milliseconds; read at start
    litePullMessageEnable: bool = True
    longPollingEnable: bool = True
    shortPollingTimeMills: int = 1000
    maxTransferCountOnMessageInMemory: int = 32  # in one pull or pop
    maxTransferBytesOnMessageInMemory: int = 256 * 1024
    maxMessageSize: int = 4 * 1024 * 1024
    messageDelayLevel: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    timerMaxDelaySec: int = 3 * 24 * 3600
    recallMessageEnable: bool = False
    enableLmq: bool = False  # light message queues
    enableMultiDispatch: bool = False  # messages name light queues that they are added to
    appendTopicForTimerDeleteKey: bool = False  # a recall does not recall a message of another topic with the same key
    popFromRetryProbability: int = 20  # percentage of pops that read the retries first
    popFromRetryProbabilityForPriority: int = 0  # the same for pops of a priority topic
    priorityOrderAsc: bool = True  # the last queue has the highest priority
    useSeparateRetryQueue: bool = False  # a popped queue has its own retry queue
    popPollingSize: int = 1024  # limit of pops that wait for one queue of a group
    maxPopPollingSize: int = 100000  # limit of waiting pops in total
    reviveQueueNum: int = 8  # only written into handles
    enableRetryTopicV2: bool = False
    retrieveMessageFromPopRetryTopicV1: bool = True
    fileReservedTime: int = 72  # hours
    maxStoreSize: int = 0  # bytes; RocketMQ uses the disk's share instead. 0: 256 MiB in memory, 1 GiB in a folder


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


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
