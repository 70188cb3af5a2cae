"""The check of a subscription before a consumer starts (`ClientManageProcessor.checkClientConfig`)."""

from __future__ import annotations

from rmqd.broker.channel import Channel
from rmqd.broker.filter.lexer import ExpressionError
from rmqd.broker.filter.subscriptions import compiled, is_tag_type
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.processors.pull import no_property_filter
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.heartbeat import CheckClientRequestBody
from rmqd.wire.command import RemotingCommand


class ClientConfigProcessor(RequestProcessor):
    """Checks the SQL92 condition of a subscription."""

    @answers(RequestCode.CHECK_CLIENT_CONFIG)
    def check(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CHECK_CLIENT_CONFIG (46): reject a condition that cannot be parsed."""
        if not request.body:
            return Reply()
        subscription = CheckClientRequestBody.from_json(request.body).subscription_data
        kind = subscription.expression_type
        if is_tag_type(kind):
            return Reply()
        if not self._broker.settings.enablePropertyFilter:
            raise Refusal(ResponseCode.SYSTEM_ERROR, no_property_filter(kind))
        try:
            compiled(kind, subscription.sub_string)
        except ExpressionError as error:
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return Reply()
