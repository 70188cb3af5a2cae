"""Error responses of brokers and name servers. Codes that rmqd handles specially have a class."""

from __future__ import annotations

from typing import ClassVar, Final

from rmqd.access_refusal import AccessRefusal
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RmqdError

# limit for a server's remark, which may be 16 MiB long and is part of many log lines
MOST_REMARK_CHARACTERS: Final = 4096


class BrokerError(RmqdError):
    """A broker or name server answered with an error code. `BrokerError.of` chooses the class by the code."""

    codes: ClassVar[dict[int, type[BrokerError]]] = {}
    retriable: ClassVar[bool] = False
    """Whether the same request may succeed a moment later."""
    stale_route: ClassVar[bool] = False
    """Whether the route to this broker is outdated. If so, refresh the route and try again."""

    def __init_subclass__(cls, *, code: ResponseCode | None = None) -> None:
        if code is not None:
            cls.codes[int(code)] = cls

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        name, remark = ResponseCode(code).name, (remark or "")[:MOST_REMARK_CHARACTERS]
        unknown = " (a code that this version of rmqd does not know)" if name.startswith("UNKNOWN_") else ""
        super().__init__(f"{name} ({int(code)}) from {address}: {remark or 'no reason given'}{unknown}")
        self.code = code
        self.remark = remark
        self.address = address

    @classmethod
    def of(cls, code: int, remark: str | None, address: str, request: RequestCode | None = None) -> BrokerError:
        """Return the error for a response code. Codes without a class become a plain BrokerError."""
        remark = (remark or "")[:MOST_REMARK_CHARACTERS]
        if remark and (refusal := AccessRefusal.of(code, remark)) is not None:
            return AccessRefusedError(code, remark, address, refusal, request)
        return cls.codes.get(code, BrokerError)(code, remark, address)


class BrokerFailureError(BrokerError, code=ResponseCode.SYSTEM_ERROR):
    """The broker failed to process the request. The remark has the text of its exception."""


class SystemBusyError(BrokerError, code=ResponseCode.SYSTEM_BUSY):
    """The broker is overloaded, or refuses for now."""

    retriable = True


class RequestCodeNotSupportedError(BrokerError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """The broker does not know the request: it is too old, or a proxy that does not forward it."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        super().__init__(code, remark, address)
        self.args = (
            f"{self.args[0]} (the broker is too old for this request, or is a proxy, which forwards few requests)",
        )


class MessageIllegalError(BrokerError, code=ResponseCode.MESSAGE_ILLEGAL):
    """Body, properties or topic name are too long for the broker."""


class ServiceNotAvailableError(BrokerError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The broker cannot store messages now: its disk is full, it is a slave, or it is shutting down."""

    retriable = True


class NoPermissionError(BrokerError, code=ResponseCode.NO_PERMISSION):
    """A permission bit, a disabled group, or access control forbids the request."""


class AccessRefusedError(NoPermissionError):
    """Access control refuses the client, or the request."""

    is_reported = True

    def __init__(
        self, code: int, remark: str, address: str, refusal: AccessRefusal, request: RequestCode | None = None
    ) -> None:
        super().__init__(code, remark, address)
        # RocketMQ 4 adds the exception's class and source line
        first = remark.splitlines()[0]
        reason = (first.partition("AclException: ")[2] or first).partition(", org.apache")[0].rstrip(".")
        self.args = (f"{address} refuses {refusal.text(reason, request)}",)
        self.refusal = refusal


class TopicNotExistError(BrokerError, code=ResponseCode.TOPIC_NOT_EXIST):
    """The broker does not have the topic."""

    stale_route = True


class QueryNotFoundError(BrokerError, code=ResponseCode.QUERY_NOT_FOUND):
    """The broker has nothing stored for the request, such as no offset of the group."""


class SubscriptionParseError(BrokerError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """The broker cannot read the subscription's expression."""


class SubscriptionNotExistError(BrokerError, code=ResponseCode.SUBSCRIPTION_NOT_EXIST):
    """The broker has no heartbeat of the group, or the topic is not in the group's subscription."""

    retriable = True


class SubscriptionNotLatestError(BrokerError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """The broker still has an older subscription of the group; the next heartbeat updates it."""

    retriable = True


class FilterDataNotExistError(BrokerError, code=ResponseCode.FILTER_DATA_NOT_EXIST):
    """The broker has no compiled SQL expression for the group and topic; the next heartbeat sends it."""

    retriable = True


class FilterDataNotLatestError(BrokerError, code=ResponseCode.FILTER_DATA_NOT_LATEST):
    """The broker has compiled an older SQL expression; the next heartbeat updates it."""

    retriable = True


class SubscriptionGroupNotExistError(BrokerError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """The broker has no configuration for the group and does not create one automatically."""


class InvalidParameterError(BrokerError, code=ResponseCode.INVALID_PARAMETER):
    """The topic does not have this queue, or the broker refuses a name."""

    stale_route = True


class IllegalOperationError(BrokerError, code=ResponseCode.ILLEGAL_OPERATION):
    """The broker refuses the operation. The remark gives the reason."""


class MemberSilentError(BrokerError, code=ResponseCode.CONSUME_MSG_TIMEOUT):
    """A member is connected, but did not respond when the broker queried it for an operator."""


class ConsumerNotOnlineError(BrokerError, code=ResponseCode.CONSUMER_NOT_ONLINE):
    """No member of the group is connected."""


class FlowControlError(BrokerError, code=ResponseCode.FLOW_CONTROL):
    """The broker limits the rate of requests."""

    retriable = True


class NotLeaderForQueueError(BrokerError, code=ResponseCode.NOT_LEADER_FOR_QUEUE):
    """The queue of a static topic has moved to another broker."""

    stale_route = True


class GoAwayError(BrokerError, code=ResponseCode.GO_AWAY):
    """The broker is shutting down and asks for a new connection."""

    retriable = True
    stale_route = True
