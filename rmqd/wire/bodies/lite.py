"""The body of LITE_SUBSCRIPTION_CTL (200071): which lite topics a client wants of a parent topic (RocketMQ 5.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from rmqd.errors import ProtocolError
from rmqd.wire import fields
from rmqd.wire.bodies.base import Body, Wire
from rmqd.wire.fields import Named


class LiteSubscriptionAction(StrEnum):
    """What becomes of the lite topics: of those that are named, or of all that the client has."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


def _read_action(value: object, what: str) -> LiteSubscriptionAction:
    action = fields.as_text(value, what)
    try:
        return LiteSubscriptionAction(action)
    except ValueError:
        accepted = ", ".join(LiteSubscriptionAction)
        raise ProtocolError(f"the action of a lite subscription must be {accepted}, and is {action!r:.80}") from None


@dataclass(frozen=True, slots=True)
class LiteSubscription(Body, called="a lite subscription"):
    """One client's lite topics. A broker forgets them after three minutes (liteSubscriptionCheckTimeoutMills)."""

    action: Annotated[LiteSubscriptionAction, Wire(read=_read_action)]
    client_id: str
    group: str
    topic: str
    lite_topics: Annotated[tuple[str, ...], Named("liteTopicSet")] = ()
    version: int = 0
    offset_option: Annotated[Mapping[str, Any] | None, Wire(read=fields.as_object)] = None
    """Where the group is to start in lite topics that are added; kept as it came."""


@dataclass(frozen=True, slots=True)
class LiteSubscriptionCtlRequestBody(Body):
    """The whole body."""

    subscriptions: Annotated[tuple[LiteSubscription, ...], Named("subscriptionSet")]
