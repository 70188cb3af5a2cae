"""The body of LITE_SUBSCRIPTION_CTL (200071): a client's lite topics of a parent topic (RocketMQ 5.5)."""

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
    """The change to a client's lite topics: to the listed ones (PARTIAL), or to all of them (COMPLETE)."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


def _read_action(value: object, what: str) -> LiteSubscriptionAction:
    action = fields.as_text(value, what)
    try:
        return LiteSubscriptionAction(action)
    except ValueError:
        expected = ", ".join(LiteSubscriptionAction)
        raise ProtocolError(f"{action!r:.80} is not an action of a lite subscription; expected {expected}") from None


@dataclass(frozen=True, slots=True)
class LiteSubscription(Body, called="a lite subscription"):
    """One client's lite topics. A broker drops them after three minutes (liteSubscriptionCheckTimeoutMills)."""

    action: Annotated[LiteSubscriptionAction, Wire(read=_read_action)]
    client_id: str
    group: str
    topic: str
    lite_topics: Annotated[tuple[str, ...], Named("liteTopicSet")] = ()
    version: int = 0
    offset_option: Annotated[Mapping[str, Any] | None, Wire(read=fields.as_object)] = None
    """The group's start offset in added lite topics; not interpreted."""


@dataclass(frozen=True, slots=True)
class LiteSubscriptionCtlRequestBody(Body):
    subscriptions: Annotated[tuple[LiteSubscription, ...], Named("subscriptionSet")]
