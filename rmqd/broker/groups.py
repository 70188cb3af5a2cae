"""The broker's consumer groups (`SubscriptionGroupManager.java`, `MessageRequestModeManager.java`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.reply import Refusal
from rmqd.broker.settings import BrokerSettings
from rmqd.clock import Clock
from rmqd.codes import ResponseCode
from rmqd.wire import loose_json
from rmqd.wire.bodies.data_version import DataVersion
from rmqd.wire.bodies.settings import READ_FORBIDDEN, SetMessageRequestModeRequestBody, SubscriptionGroupConfig
from rmqd.wire.topics import MAX_GROUP_LENGTH, SYSTEM_GROUP_PREFIX

_ATTRIBUTES: Final = frozenset(
    "priority.factor lite.bind.topic lite.sub.model lite.sub.reset.offset.exclusive lite.sub.reset.offset.unsubscribe "
    "lite.sub.client.quota lite.sub.client.max.event.cnt lite.sub.wildcard".split()
)
_LEGAL: Final = "[%|a-zA-Z0-9_-]+"
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER FILTERSRV_CONSUMER SELF_TEST_C_GROUP CID_ONS-HTTP-PROXY CID_ONSAPI_PULL CID_ONSAPI_PERMISSION "
    "CID_ONSAPI_OWNER CID_RMQ_SYS_TRANS"
).split()


def validate_group(group: str) -> str | None:
    """Return the fault of a group's name in RocketMQ's words (`TopicValidator.java`), or None."""
    if not group.strip():
        return "The specified group is blank."
    if not re.fullmatch(_LEGAL, group):
        return f"The specified group: {group}, contains illegal characters, allowing only ^{_LEGAL}$"
    if len(group) > MAX_GROUP_LENGTH:
        return f"The specified group: {group}, is longer than group max length: {MAX_GROUP_LENGTH}"
    return None


class SubscriptionGroupManager:
    """Group configurations by name. `settings` is read on each use, because it may change while the broker runs."""

    def __init__(self, settings: BrokerSettings, clock: Clock, journal: Journal) -> None:
        self.settings = settings
        self.data_version = DataVersion(0, int(clock.wall() * 1000))
        self._clock = clock
        self._journal = journal
        self._configs = {name: SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS}
        self._forbidden = {(key.partition("@")[0], key.partition("@")[2]) for key, _ in journal.items(Kind.FORBIDDEN)}
        self._modes: dict[tuple[str, str], SetMessageRequestModeRequestBody] = {}
        for _, value in journal.items(Kind.GROUP):
            config = SubscriptionGroupConfig.from_json(value.encode())
            self._configs[config.group_name] = config
        for _, value in journal.items(Kind.REQUEST_MODE):
            mode = SetMessageRequestModeRequestBody.from_json(value.encode())
            self._modes[mode.topic, mode.consumer_group] = mode

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group, creating it if missing; None if creation is disabled or the name is illegal."""
        known = self._configs.get(group)
        if known is not None:
            return known
        if not self.settings.autoCreateSubscriptionGroup and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if validate_group(group) is not None:
            return None
        return self.put(SubscriptionGroupConfig(group_name=group))

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration; None if it is missing."""
        return self._configs.get(group)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        return dict(self._configs)

    def put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Create or change a group."""
        self._configs[config.group_name] = config
        self._journal.put(Kind.GROUP, config.group_name, config.to_json().decode())
        self._changed()
        return config

    def update(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Update a group as an administrator requests. `+key` sets an attribute, `-key` removes it."""
        known = self._configs.get(config.group_name)
        attributes = _alter({} if known is None else known.attributes, config.attributes)
        return self.put(replace(config, attributes=attributes))

    def delete(self, group: str) -> None:
        self.allow_reading(group)
        if self._configs.pop(group, None) is not None:
            self._journal.delete(Kind.GROUP, group)
            self._changed()

    def forbid_reading(self, group: str, topic: str) -> None:
        """Forbid a group to read a topic."""
        self._forbidden.add((group, topic))
        self._journal.put(Kind.FORBIDDEN, f"{group}@{topic}", "")
        self._changed()

    def allow_reading(self, group: str) -> None:
        """Allow a group to read all topics again. RocketMQ also lifts all prohibitions of a group together."""
        for one in [one for one in self._forbidden if one[0] == group]:
            self._forbidden.discard(one)
            self._journal.delete(Kind.FORBIDDEN, "@".join(one))

    def is_reading_forbidden(self, group: str, topic: str) -> bool:
        return (group, topic) in self._forbidden

    def forbidden_table(self) -> dict[str, dict[str, int]]:
        """Return the prohibitions by group and topic, as in the response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        table: dict[str, dict[str, int]] = {}
        for group, topic in self._forbidden:
            table.setdefault(group, {})[topic] = READ_FORBIDDEN
        return table

    def request_modes(self) -> list[SetMessageRequestModeRequestBody]:
        """Return the modes that were set. All other groups pull."""
        return list(self._modes.values())

    def request_mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """Return the mode that was set for a group and a topic."""
        return self._modes.get((topic, group))

    def set_request_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Set whether a group pulls or pops a topic."""
        self._modes[mode.topic, mode.consumer_group] = mode
        value = loose_json.dumps(mode.to_dict()).decode()
        self._journal.put(Kind.REQUEST_MODE, f"{mode.topic}@{mode.consumer_group}", value)

    def _changed(self) -> None:
        self.data_version = DataVersion(self.data_version.counter + 1, int(self._clock.wall() * 1000))


def _alter(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    altered = dict(current)
    for change, value in changes.items():
        sign, key = change[:1], change[1:]
        if sign not in ("+", "-") or not key:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "kv string format wrong.")
        if key not in _ATTRIBUTES:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"unsupported key: {key}")
        if sign == "+":
            altered[key] = value
        else:
            altered.pop(key, None)
    return altered
