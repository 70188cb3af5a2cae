"""Administrators' requests about consumer groups and their offsets (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from rmqd.broker.peer_channel import NO_CODE, Channel, Refusal, Reply
from rmqd.broker.processors.processor_base import RequestProcessor, answers, is_current
from rmqd.broker.topic_registry import name_error
from rmqd.codes import LanguageCode, RequestCode, ResponseCode
from rmqd.wire import loose_json
from rmqd.wire.bodies.config_bodies import (
    GroupForbidden,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    TopicConfig,
)
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers import group_headers
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import MAX_GROUP_LENGTH, is_retry_topic

_MAX_GROUPS: Final = 2000  # limit for a page of groups; Java: splitMetadataSize
_UNSET: Final = {"group": "null", "timestamp": "0", "isForce": "false"}  # Java's values of missing fields
_ALL_QUEUES: Final = -1


class GroupProcessor(RequestProcessor):
    """The processor of administrators' requests about consumer groups and their offsets."""

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def update(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200): create or change a group."""
        if request.body:
            self._update((SubscriptionGroupConfig.from_json(request.body),))
        return Reply()

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def update_list(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): create or change groups; none if a name is illegal."""
        self._update(SubscriptionGroupList.from_json(request.body).group_config_list)
        return Reply()

    @answers(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all_configs(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201) with all groups, or with a page of groups, sorted by name.

        If the groups changed since the client's last page, paging restarts at the first page.
        """
        groups = self._broker.groups
        header = group_headers.GetAllSubscriptionGroupRequestHeader.from_ext_fields(request.ext_fields)
        table, total, forbidden = groups.all(), len(groups.all()), groups.forbidden_table()
        if (header.group_seq, header.data_version, header.max_group_num) != (None, None, None):
            most = _MAX_GROUPS if header.max_group_num is None else min(header.max_group_num, _MAX_GROUPS)
            begin = (header.group_seq or 0) if is_current(header.data_version, groups.data_version) else 0
            table = dict(islice(sorted(table.items()), begin, begin + most))
            forbidden = {group: topics for group, topics in forbidden.items() if group in table}
        body = SubscriptionGroupWrapper(table, groups.data_version, forbidden).to_json()
        return Reply(ext_fields={"totalGroupNum": str(total)}, body=body)

    @answers(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def config(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_SUBSCRIPTIONGROUP_CONFIG (352) with a group's configuration, creating a missing group."""
        header = group_headers.GetSubscriptionGroupConfigRequestHeader.from_ext_fields(request.ext_fields)
        config = self._broker.groups.find_or_create(header.group)
        if config is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return Reply(body=config.to_json())

    @answers(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete(self, channel: Channel, request: RemotingCommand) -> Reply:
        """DELETE_SUBSCRIPTIONGROUP (207): delete a group, and its offsets if requested. Its retry topic stays."""
        header = group_headers.DeleteSubscriptionGroupRequestHeader.from_ext_fields(request.ext_fields)
        self._broker.groups.delete(header.group_name)
        if header.clean_offset:
            self._broker.offsets.forget(group=header.group_name)
            self._broker.revive.forget(group=header.group_name)
            self._broker.pop_order.forget(group=header.group_name)
        return Reply()

    @answers(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    def forbidden(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): set (if requested) and return whether a group may read a topic."""
        groups = self._broker.groups
        header = group_headers.UpdateGroupForbiddenRequestHeader.from_ext_fields(request.ext_fields)
        if header.readable:
            groups.allow_reading(header.group)
        elif header.readable is False:
            groups.forbid_reading(header.group, header.topic)
        readable = not groups.is_reading_forbidden(header.group, header.topic)
        return Reply(remark="", body=GroupForbidden(header.group, header.topic, readable).to_json())

    @answers(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_request_mode(self, channel: Channel, request: RemotingCommand) -> Reply:
        """SET_MESSAGE_REQUEST_MODE (401): set whether a group pulls or pops a topic."""
        mode = SetMessageRequestModeRequestBody.from_json(request.body)
        if is_retry_topic(mode.topic):
            raise Refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._broker.topics.get(mode.topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        if self._broker.groups.find_or_create(mode.consumer_group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self._broker.groups.set_request_mode(mode)
        return Reply()

    @answers(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def request_modes(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_ALL_MESSAGE_REQUEST_MODE (402) with the pull and pop modes that were set, by topic and group."""
        table: dict[str, dict[str, Any]] = {}
        for mode in self._broker.groups.request_modes():
            table.setdefault(mode.topic, {})[mode.consumer_group] = mode.to_dict()
        return Reply(body=loose_json.dumps({"messageRequestModeMap": table}))

    @answers(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): reset offsets on the broker, or ask the members to reset them."""
        header = group_headers.ResetOffsetRequestHeader.from_ext_fields({**_UNSET, **request.ext_fields})
        if self._broker.settings.useServerSideResetOffset:
            return self._reset_here(header)
        return self._reset_members(header, as_list=request.language is LanguageCode.CPP)

    @answers(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CLONE_GROUP_OFFSET (314): copy a group's offsets to another group, for one topic or for all topics."""
        header = group_headers.CloneGroupOffsetRequestHeader.from_ext_fields(request.ext_fields)
        broker = self._broker
        if fault := name_error("group", header.dest_group, MAX_GROUP_LENGTH):
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        info = None if header.offline else broker.consumers.get(header.src_group)
        for topic in [header.topic] if header.topic else broker.offsets.topics_of(header.src_group):
            subscribed = info is None or not info.subscriptions or topic in info.subscriptions
            if broker.topics.get(topic) is not None and subscribed:
                broker.offsets.clone(header.src_group, header.dest_group, topic)
        return Reply()

    def _update(self, configs: Sequence[SubscriptionGroupConfig]) -> None:
        for config in configs:
            if fault := name_error("group", config.group_name, MAX_GROUP_LENGTH):
                raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        for config in configs:
            self._broker.groups.update(config)

    def _reset_here(self, header: group_headers.ResetOffsetRequestHeader) -> Reply:
        broker, topic, group = self._broker, header.topic, header.group
        config = broker.topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if broker.groups.get(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        targets = self._targets(header, config)
        if not targets:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in targets.items():
            broker.offsets.reset(group, topic, queue_id, offset)
        return Reply(body=self._body(topic, targets).to_json())

    def _targets(self, header: group_headers.ResetOffsetRequestHeader, config: TopicConfig) -> dict[int, int]:
        topic, queue_id, offset = header.topic, header.queue_id, header.offset
        if queue_id is None or queue_id <= _ALL_QUEUES:
            return {one: self._search(topic, one, header.timestamp) for one in range(config.read_queue_nums)}
        if offset is None or offset == -1:
            return {queue_id: self._search(topic, queue_id, header.timestamp)}
        low, high = self._broker.store.min_offset(topic, queue_id), self._broker.store.max_offset(topic, queue_id)
        if not low <= offset <= high + 1:
            remark = f"Target offset {offset} not in consume queue range [{low}-{high}]"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        return {queue_id: offset}

    def _reset_members(self, header: group_headers.ResetOffsetRequestHeader, *, as_list: bool) -> Reply:
        """Send RESET_CONSUMER_CLIENT_OFFSET (220) with new offsets to each member.

        Without `isForce`, no offset is increased. The request's fields `queueId` and `offset` are ignored.
        """
        broker, topic, group = self._broker, header.topic, header.group
        config = broker.topics.get(topic)
        if config is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        targets = {}
        for queue_id in range(config.write_queue_nums):
            committed = broker.offsets.get(group, topic, queue_id)
            if committed is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            found = self._search(topic, queue_id, header.timestamp)
            targets[queue_id] = found if header.is_force else min(found, committed)
        info = broker.consumers.get(group)
        if info is None:
            remark = "Consumer not online, so can not reset offset, Group: {} Topic: {} Timestamp: {}"
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, remark.format(group, topic, header.timestamp))
        push = group_headers.ResetOffsetRequestHeader(
            topic=topic, group=group, timestamp=header.timestamp, is_force=False, queue_id=_ALL_QUEUES
        )
        body = self._body(topic, targets)
        for client in info.channels.values():
            client.channel.send_oneway(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, push.ext_fields(), body.to_json(as_list=as_list)
            )
        return Reply(remark=NO_CODE, body=body.to_json())

    def _search(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message at or after a time; the end of the queue for a time below 0."""
        if timestamp_ms < 0:
            return self._broker.store.max_offset(topic, queue_id)
        return self._broker.store.offset_by_time(topic, queue_id, timestamp_ms)

    def _body(self, topic: str, targets: dict[int, int]) -> ResetOffsetBody:
        return ResetOffsetBody(
            {MessageQueue(topic, self._broker.name, queue_id): offset for queue_id, offset in targets.items()}
        )
