"""The broker's consumer groups, and their offsets: committed, pulled, and reset by an operator.

Java: `SubscriptionGroupManager`, `MessageRequestModeManager`, `ConsumerOffsetManager`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.peer_channel import Refusal
from rmqd.broker.store.journal import SEPARATOR, Journal, JournalKind, key_of
from rmqd.broker.topic_registry import name_error
from rmqd.codes import ResponseCode
from rmqd.runtime.clock import Clock
from rmqd.wire import loose_json
from rmqd.wire.bodies.config_bodies import READ_FORBIDDEN_BIT, SetMessageRequestModeRequestBody, SubscriptionGroupConfig
from rmqd.wire.bodies.json_body import DataVersion
from rmqd.wire.topics import MAX_GROUP_LENGTH, SYSTEM_GROUP_PREFIX

_ATTRIBUTES: Final = frozenset(
    "priority.factor lite.bind.topic lite.sub.model lite.sub.reset.offset.exclusive lite.sub.reset.offset.unsubscribe "
    "lite.sub.client.quota lite.sub.client.max.event.cnt lite.sub.wildcard".split()
)
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER FILTERSRV_CONSUMER SELF_TEST_C_GROUP CID_ONS-HTTP-PROXY CID_ONSAPI_PULL CID_ONSAPI_PERMISSION "
    "CID_ONSAPI_OWNER CID_RMQ_SYS_TRANS"
).split()


class SubscriptionGroupManager:
    """The configurations of consumer groups. `settings` may be replaced while the broker runs."""

    def __init__(self, settings: BrokerSettings, clock: Clock, journal: Journal) -> None:
        self.settings = settings
        self.data_version = DataVersion(0, int(clock.wall() * 1000))
        self._clock = clock
        self._journal = journal
        self._configs = {name: SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS}
        self._forbidden = {tuple(key.split(SEPARATOR, 1)) for key, _ in journal.items(JournalKind.FORBIDDEN)}
        self._modes: dict[tuple[str, str], SetMessageRequestModeRequestBody] = {}
        for _, value in journal.items(JournalKind.GROUP):
            config = SubscriptionGroupConfig.from_json(value.encode())
            self._configs[config.group_name] = config
        for _, value in journal.items(JournalKind.REQUEST_MODE):
            mode = SetMessageRequestModeRequestBody.from_json(value.encode())
            self._modes[mode.topic, mode.consumer_group] = mode

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration. A missing group is created; None if that is disabled or the name illegal."""
        known = self._configs.get(group)
        if known is not None:
            return known
        if not self.settings.autoCreateSubscriptionGroup and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if name_error("group", group, MAX_GROUP_LENGTH):
            return None
        return self.put(SubscriptionGroupConfig(group_name=group))

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration; None if the group is missing. Unlike `find`, this never creates a group."""
        return self._configs.get(group)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        return dict(self._configs)

    def put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        self._configs[config.group_name] = config
        self._journal.put(JournalKind.GROUP, config.group_name, config.to_json().decode())
        self._changed()
        return config

    def update(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Create or change a group for an administrator. The attribute key `+key` sets a value, `-key` removes it."""
        known = self._configs.get(config.group_name)
        attributes = _alter({} if known is None else known.attributes, config.attributes)
        return self.put(replace(config, attributes=attributes))

    def delete(self, group: str) -> None:
        self.allow_reading(group)
        if self._configs.pop(group, None) is not None:
            self._journal.delete(JournalKind.GROUP, group)
            self._changed()

    def forbid_reading(self, group: str, topic: str) -> None:
        self._forbidden.add((group, topic))
        self._journal.put(JournalKind.FORBIDDEN, key_of(group, topic), "")
        self._changed()

    def allow_reading(self, group: str) -> None:
        """Allow a group to read all topics again. As in RocketMQ, this lifts all prohibitions of the group."""
        for one in [one for one in self._forbidden if one[0] == group]:
            self._forbidden.discard(one)
            self._journal.delete(JournalKind.FORBIDDEN, key_of(*one))

    def is_reading_forbidden(self, group: str, topic: str) -> bool:
        return (group, topic) in self._forbidden

    def forbidden_table(self) -> dict[str, dict[str, int]]:
        """Return, by group, the topics that the group must not read. The value of each topic is READ_FORBIDDEN_BIT."""
        table: dict[str, dict[str, int]] = {}
        for group, topic in self._forbidden:
            table.setdefault(group, {})[topic] = READ_FORBIDDEN_BIT
        return table

    def request_modes(self) -> list[SetMessageRequestModeRequestBody]:
        """Return the modes (pull or pop) that were set for a topic and group. Without a mode, a group pulls."""
        return list(self._modes.values())

    def request_mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        return self._modes.get((topic, group))

    def set_request_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        self._modes[mode.topic, mode.consumer_group] = mode
        value = loose_json.dumps(mode.to_dict()).decode()
        self._journal.put(JournalKind.REQUEST_MODE, key_of(mode.topic, mode.consumer_group), value)

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


_Table = dict[tuple[str, str], dict[int, int]]


class ConsumerOffsetManager:
    """The offsets of consumer groups in each queue. `settings` may be replaced while the broker runs."""

    def __init__(self, settings: BrokerSettings, journal: Journal) -> None:
        self.settings = settings
        self._journal = journal
        self._committed: _Table = defaultdict(dict)
        self._pulled: _Table = defaultdict(dict)
        self._resets: _Table = defaultdict(dict)
        for table, kind in ((self._committed, JournalKind.OFFSET), (self._resets, JournalKind.RESET)):
            for key, value in journal.items(kind):
                topic, group, queue_id = key.rsplit(SEPARATOR, 2)
                table[group, topic][int(queue_id)] = int(value)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a pending reset, else the group's committed offset; None if the queue has neither."""
        reset = self.pending_reset(group, topic, queue_id)
        if reset is not None:
            return reset
        offset = self._committed.get((group, topic), {}).get(queue_id, -1)
        return offset if offset >= 0 else None  # a member may commit a negative offset, which counts as no offset

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset. It may be lower than the previous offset."""
        self._committed[group, topic][queue_id] = offset
        self._journal.put(JournalKind.OFFSET, key_of(topic, group, queue_id), str(offset))

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's committed offsets in a topic by queue id."""
        return dict(self._committed.get((group, topic), {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has committed an offset."""
        return [topic for one, topic in self._committed if one == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed an offset in the topic."""
        return [group for group, one in self._committed if one == topic]

    def note_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record the offset after the last message that a group pulled from a queue."""
        self._pulled[group, topic][queue_id] = offset

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset after a group's last pulled message; None if it has not pulled since the broker started."""
        return self._pulled.get((group, topic), {}).get(queue_id)

    def clone(self, group: str, to_group: str, topic: str) -> None:
        """Replace the offsets of `to_group` in a topic by the offsets of `group`, if `group` has any."""
        queues = self.queues(group, topic)
        if not queues:
            return
        self._forget(self._committed, JournalKind.OFFSET, to_group, topic)
        for queue_id, offset in queues.items():
            self.commit(to_group, topic, queue_id, offset)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group's offset at once, for an operator. The reset is pending until a pull or pop takes it."""
        self._resets[group, topic][queue_id] = offset
        self._journal.put(JournalKind.RESET, key_of(topic, group, queue_id), str(offset))
        self.commit(group, topic, queue_id, offset)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset that is not reported yet, or None; None without useServerSideResetOffset."""
        queues = self._resets.get((group, topic))
        return None if queues is None or not self.settings.useServerSideResetOffset else queues.get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a pending reset, and mark the reset as reported; None if no reset is pending."""
        offset = self.pending_reset(group, topic, queue_id)
        if offset is not None:
            del self._resets[group, topic][queue_id]
            self._journal.delete(JournalKind.RESET, key_of(topic, group, queue_id))
        return offset

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        for table, kind in (
            (self._committed, JournalKind.OFFSET),
            (self._pulled, None),
            (self._resets, JournalKind.RESET),
        ):
            for one in [key for key in table if group in (None, key[0]) and topic in (None, key[1])]:
                self._forget(table, kind, *one)

    def _forget(self, table: _Table, kind: JournalKind | None, group: str, topic: str) -> None:
        for queue_id in table.pop((group, topic), {}):
            if kind is not None:
                self._journal.delete(kind, key_of(topic, group, queue_id))
