"""The errors for error responses of brokers and name servers. Response codes that rmqd handles specially have a class.

`AccessRefusal` explains why a response refuses access, and what to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RmqdError

_RESOURCE: Final = re.compile(r"permission to access (\S+) from")  # RocketMQ 5: Topic:orders, Group:mailer
# The actions that a user of RocketMQ 5 must be allowed, by the first word of a request's name; Sub for other words.
# Source: DefaultAuthorizationContextBuilder, and the annotations of the request headers.
_ACTIONS: Final = {
    **dict.fromkeys(("SEND", "RECALL"), "Pub"),
    **dict.fromkeys(("GET", "QUERY", "SEARCH", "VIEW"), "Get"),
    **dict.fromkeys(("UPDATE", "INVOKE", "CLONE", "SET", "WIPE", "ADD", "PUT"), "Update"),
    "DELETE": "Delete",
}
_BY_REQUEST: Final = {
    **dict.fromkeys((RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST), "Create"),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "Sub",  # Pub or Get is also sufficient
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "Sub",  # Get is also sufficient
    RequestCode.QUERY_CONSUMER_OFFSET: "Sub",  # Get is also sufficient
    RequestCode.QUERY_MESSAGE: "Sub",  # Get is also sufficient
    RequestCode.UPDATE_CONSUMER_OFFSET: "Sub",  # Update is also sufficient
    RequestCode.QUERY_ASSIGNMENT: "Sub",
}


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """The reason why access control refuses a request, and advice.

    If `is_about_who` is True, the server rejects this client's identity, and therefore all of its requests.
    """

    is_about_who: bool
    advice: str

    @classmethod
    def of(cls, code: int, remark: str) -> AccessRefusal | None:
        """Return the refusal that a response's code and remark express; None if the response is not a refusal."""
        if code == ResponseCode.NO_PERMISSION or (code == ResponseCode.SYSTEM_ERROR and "AclException" in remark):
            return next((refusal for words, refusal in _REFUSALS if words in remark), None)
        return None

    def text(self, reason: str, request: RequestCode | None) -> str:
        """Return an error text: the refused request, the action that it needs, `reason`, and what to do."""
        if self.is_about_who or request is None:
            return f"access ({reason}): {self.advice}"
        found = _RESOURCE.search(reason)
        resource = "" if found is None else found[1]
        action = _BY_REQUEST.get(request) or _ACTIONS.get(request.name.partition("_")[0], "Sub")
        if action == "Pub" and resource.startswith("Group:"):  # a member sends to its retry topic
            action = "Sub"
        refused = f"{request.name} ({reason}), which needs the action {action}"
        if not resource:
            return f"{refused}: {self.advice}"
        actions = "Sub,Get" if action in ("Sub", "Get") else action
        command = f"mqadmin createAcl -s User:USER -r {resource} -a {actions} -d Allow"
        return f"{refused}: `{command}` permits it; list all actions of the user in `-a`; see docs/security.md"


_MISSING: Final = AccessRefusal(True, "set client.access_key and client.secret_key")
_UNKNOWN: Final = AccessRefusal(True, "the server does not know this client.access_key")
_SECRET: Final = AccessRefusal(True, "client.secret_key does not match client.access_key")
_DISABLED: Final = AccessRefusal(True, "the cluster's administrator can enable the user with `mqadmin updateUser`")
_EXPIRED: Final = AccessRefusal(True, "replace client.security_token and its keys, then `rmqd reload`")
_FAILED: Final = AccessRefusal(True, "check client.access_key, client.secret_key and client.security_token")
_FORBIDDEN: Final = AccessRefusal(
    False, "the cluster's administrator can permit it; docs/security.md lists the permissions"
)
# Words in the remarks of refusals: first from RocketMQ 5, then from RocketMQ 4. The first match counts.
_REFUSALS: Final = (
    ("has no permission to access", _FORBIDDEN),
    ("username cannot be null", _MISSING),
    ("check signature failed", _SECRET),
    ("is disabled", _DISABLED),
    ("Authorization failed", _FORBIDDEN),
    ("Authentication failed", _FAILED),
    ("authentication header is incorrect", _FAILED),
    ("No accessKey is configured", _MISSING),
    ("No acl config for", _UNKNOWN),
    ("Check signature failed", _SECRET),
    ("No default permission", _FORBIDDEN),
    ("No permission", _FORBIDDEN),
    ("Need admin permission", _FORBIDDEN),
    ("Token", _EXPIRED),
    ("token", _EXPIRED),
    ("User:", _UNKNOWN),
    ("AclException", _FAILED),
)


# a server's remark may have 16 MiB, and is part of many log lines, so it is cut
MAX_REMARK_CHARACTERS: Final = 4096


class BrokerError(RmqdError):
    """A broker or name server responded with an error code. `BrokerError.of` chooses the subclass by the code."""

    codes: ClassVar[dict[int, type[BrokerError]]] = {}
    retriable: ClassVar[bool] = False
    """Whether the same request may succeed a moment later."""
    stale_route: ClassVar[bool] = False
    """Whether an outdated route may be the cause. If so, refresh the topic's route and try again."""

    def __init_subclass__(
        cls, *, code: ResponseCode | None = None, retriable: bool = False, stale_route: bool = False
    ) -> None:
        if code is not None:
            cls.codes[int(code)] = cls
        cls.retriable |= retriable
        cls.stale_route |= stale_route

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        name, remark = ResponseCode(code).name, (remark or "")[:MAX_REMARK_CHARACTERS]
        unknown = " (a code that this version of rmqd does not know)" if name.startswith("UNKNOWN_") else ""
        super().__init__(f"{name} ({int(code)}) from {address}: {remark or 'no reason given'}{unknown}")
        self.code = code
        self.remark = remark
        self.address = address

    @classmethod
    def of(cls, code: int, remark: str | None, address: str, request: RequestCode | None = None) -> BrokerError:
        """Return the error for a response code. Codes without a class become a plain BrokerError."""
        remark = (remark or "")[:MAX_REMARK_CHARACTERS]
        if remark and (refusal := AccessRefusal.of(code, remark)) is not None:
            return AccessRefusedError(code, remark, address, refusal, request)
        return cls.codes.get(code, BrokerError)(code, remark, address)


class BrokerFailureError(BrokerError, code=ResponseCode.SYSTEM_ERROR):
    """The broker failed to process the request. The remark contains the text of the broker's exception."""


class SystemBusyError(BrokerError, code=ResponseCode.SYSTEM_BUSY, retriable=True):
    """The broker is overloaded, or temporarily refuses the request."""


class RequestCodeNotSupportedError(BrokerError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """The server does not know the request: it is too old, a proxy that does not forward it, or no name server."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        super().__init__(code, remark, address)
        self.args = (
            f"{self.args[0]} (the server is too old for this request, is a proxy, which forwards few requests, or is a "
            "broker in the place of a name server)",
        )


class MessageIllegalError(BrokerError, code=ResponseCode.MESSAGE_ILLEGAL):
    """Body, properties or topic name are too long for the broker."""


class ServiceNotAvailableError(BrokerError, code=ResponseCode.SERVICE_NOT_AVAILABLE, retriable=True):
    """The broker cannot store messages now: its disk is full, it is a slave, or it is shutting down."""


class NoPermissionError(BrokerError, code=ResponseCode.NO_PERMISSION):
    """The request is forbidden by the topic's permission bits, a disabled group, or access control."""


class AccessRefusedError(NoPermissionError):
    """Access control refuses this request, or all requests of this client."""

    is_reported = True

    def __init__(
        self, code: int, remark: str, address: str, refusal: AccessRefusal, request: RequestCode | None = None
    ) -> None:
        super().__init__(code, remark, address)
        # RocketMQ 4 adds the exception's class and source line to the remark; both are removed
        first = remark.splitlines()[0]
        reason = (first.partition("AclException: ")[2] or first).partition(", org.apache")[0].rstrip(".")
        self.args = (f"{address} refuses {refusal.text(reason, request)}",)
        self.refusal = refusal


class TopicNotExistError(BrokerError, code=ResponseCode.TOPIC_NOT_EXIST, stale_route=True):
    """The broker does not have the topic."""


class QueryNotFoundError(BrokerError, code=ResponseCode.QUERY_NOT_FOUND):
    """The broker does not have the requested data, such as the group's offset in a queue."""


class SubscriptionParseError(BrokerError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """The broker cannot parse the subscription's filter expression."""


class SubscriptionNotExistError(BrokerError, code=ResponseCode.SUBSCRIPTION_NOT_EXIST, retriable=True):
    """The broker has no heartbeat of the group, or the topic is not in the group's subscription."""


class SubscriptionNotLatestError(BrokerError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST, retriable=True):
    """The broker still has an older subscription of the group; the next heartbeat updates it."""


class FilterDataNotExistError(BrokerError, code=ResponseCode.FILTER_DATA_NOT_EXIST, retriable=True):
    """The broker has no compiled SQL expression for the group and topic; the next heartbeat sends it."""


class FilterDataNotLatestError(BrokerError, code=ResponseCode.FILTER_DATA_NOT_LATEST, retriable=True):
    """The broker has compiled an older SQL expression; the next heartbeat updates it."""


class SubscriptionGroupNotExistError(BrokerError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """The broker has no configuration for the group and does not create one automatically."""


class InvalidParameterError(BrokerError, code=ResponseCode.INVALID_PARAMETER, stale_route=True):
    """The topic does not have this queue, or the broker refuses a name."""


class IllegalOperationError(BrokerError, code=ResponseCode.ILLEGAL_OPERATION):
    """The broker refuses the operation. The remark gives the reason."""


class MemberSilentError(BrokerError, code=ResponseCode.CONSUME_MSG_TIMEOUT):
    """A member is connected, but did not respond to a request that the broker forwarded for an operator."""


class ConsumerNotOnlineError(BrokerError, code=ResponseCode.CONSUMER_NOT_ONLINE):
    """No member of the group is connected."""


class FlowControlError(BrokerError, code=ResponseCode.FLOW_CONTROL, retriable=True):
    """The broker limits the rate of requests."""


class NotLeaderForQueueError(BrokerError, code=ResponseCode.NOT_LEADER_FOR_QUEUE, stale_route=True):
    """The queue of a static topic has moved to another broker."""


class GoAwayError(BrokerError, code=ResponseCode.GO_AWAY, retriable=True, stale_route=True):
    """The broker is shutting down and asks for a new connection."""
