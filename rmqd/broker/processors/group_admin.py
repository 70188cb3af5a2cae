"""Administrators' requests about consumer groups."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from rmqd.broker.channel import Channel
from rmqd.broker.groups import validate_group
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.data_version import DataVersion
from rmqd.wire.bodies.settings import (
    GroupForbidden,
    SetMessageRequestModeRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from rmqd.wire.topics import is_retry_topic

_MOST_GROUPS: Final = 2000  # in one reply; Java: splitMetadataSize


class GroupAdminProcessor(RequestProcessor):
    """Answers administrators about consumer groups."""

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
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups, or a page of them by name.

        If the table changed since the last page, paging restarts at the first page.
        """
        groups = self._broker.groups
        header = GetAllSubscriptionGroupRequestHeader.from_ext_fields(request.ext_fields)
        table, total, forbidden = groups.all(), len(groups.all()), groups.forbidden_table()
        if (header.group_seq, header.data_version, header.max_group_num) != (None, None, None):
            most = _MOST_GROUPS if header.max_group_num is None else min(header.max_group_num, _MOST_GROUPS)
            begin = (header.group_seq or 0) if self._is_current(header.data_version) else 0
            table = dict(islice(sorted(table.items()), begin, begin + most))
            forbidden = {group: topics for group, topics in forbidden.items() if group in table}
        fields = GetAllSubscriptionGroupResponseHeader(total_group_num=total).ext_fields()
        return Reply(ext_fields=fields, body=SubscriptionGroupWrapper(table, groups.data_version, forbidden).to_json())

    @answers(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def config(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352): one group. The request creates it if it does not exist."""
        header = GetSubscriptionGroupConfigRequestHeader.from_ext_fields(request.ext_fields)
        config = self._broker.groups.find(header.group)
        if config is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return Reply(body=config.to_json())

    @answers(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete(self, channel: Channel, request: RemotingCommand) -> Reply:
        """DELETE_SUBSCRIPTIONGROUP (207): delete a group, and its offsets if requested. Its retry topic stays."""
        header = DeleteSubscriptionGroupRequestHeader.from_ext_fields(request.ext_fields)
        self._broker.groups.delete(header.group_name)
        if header.clean_offset:
            self._broker.offsets.forget(group=header.group_name)
            self._broker.revive.forget(group=header.group_name)
            self._broker.pop_order.forget(group=header.group_name)
        return Reply()

    @answers(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    def forbidden(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): whether a group may read a topic; the request may change it."""
        groups = self._broker.groups
        header = UpdateGroupForbiddenRequestHeader.from_ext_fields(request.ext_fields)
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
        if self._broker.groups.find(mode.consumer_group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self._broker.groups.set_request_mode(mode)
        return Reply()

    @answers(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def request_modes(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_ALL_MESSAGE_REQUEST_MODE (402): the modes that SET_MESSAGE_REQUEST_MODE set, by topic and group."""
        table: dict[str, dict[str, Any]] = {}
        for mode in self._broker.groups.request_modes():
            table.setdefault(mode.topic, {})[mode.consumer_group] = mode.to_dict()
        return Reply(body=loose_json.dumps({"messageRequestModeMap": table}))

    def _update(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        configs = tuple(configs)
        for config in configs:
            wrong = validate_group(config.group_name)
            if wrong is not None:
                raise Refusal(ResponseCode.INVALID_PARAMETER, wrong)
        for config in configs:
            self._broker.groups.update(config)

    def _is_current(self, data_version: str | None) -> bool:
        if not data_version:
            return False
        version = fields.as_object(loose_json.loads(data_version), "a data version")
        return DataVersion.from_dict(version) == self._broker.groups.data_version
