"""The broker's settings, runtime figures and cleaning (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Refusal, Reply
from rmqd.broker.runtime_info import runtime_info
from rmqd.broker.settings import UnknownSettingError
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.cluster import KVTable
from rmqd.wire.bodies.data_version import DataVersion
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.admin import GetBrokerConfigResponseHeader
from rmqd.wire.java_properties import dump_properties, load_properties

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController

log = structlog.get_logger(__name__)

_PROTECTED: Final = frozenset({"configBlackList", "brokerConfigPath"})


class RuntimeProcessor(RequestProcessor):
    """Answers requests about settings, runtime figures and cleaning."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._version = DataVersion(timestamp=int(broker.clock.wall() * 1000))

    @answers(RequestCode.UPDATE_BROKER_CONFIG)
    def update_settings(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_BROKER_CONFIG (25): change settings until the broker stops. Unknown ones are ignored and logged."""
        values = load_properties(request.body)
        if _PROTECTED & values.keys():
            raise Refusal(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        settings, ignored = self._broker.settings.updated(values)
        try:
            self._broker.change_settings(settings)
        except UnknownSettingError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if values:
            self._version = DataVersion(self._version.counter + 1, int(self._broker.clock.wall() * 1000))
        if ignored:
            log.warning("broker.settings_ignored", server="broker", settings=ignored)
        return Reply()

    @answers(RequestCode.GET_BROKER_CONFIG)
    def get_settings(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_BROKER_CONFIG (26): the settings of this broker."""
        version = GetBrokerConfigResponseHeader(version=json.dumps(self._version.to_dict(), separators=(",", ":")))
        return Reply(ext_fields=version.ext_fields(), body=dump_properties(self._broker.settings.as_properties()))

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_BROKER_RUNTIME_INFO (28): the broker's runtime figures."""
        return Reply(body=KVTable(runtime_info(self._broker)).to_json())

    @answers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG)
    def expire(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306) and DELETE_EXPIRED_COMMITLOG (329): delete expired messages now."""
        self._broker.store.expire()
        return Reply()

    @answers(RequestCode.CLEAN_UNUSED_TOPIC)
    def clean_unused_topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CLEAN_UNUSED_TOPIC (316): do nothing, because the queues of a topic are deleted together with the topic."""
        return Reply()
