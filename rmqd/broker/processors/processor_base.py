"""RequestProcessor: the base of processors, and a decorator for their methods that answer requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rmqd.broker.peer_channel import Processors
from rmqd.codes import RequestCode
from rmqd.wire import loose_json
from rmqd.wire.bodies.json_body import DataVersion
from rmqd.wire.fields import as_object

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


Method = TypeVar("Method", bound=Callable[..., Any])


def answers(*codes: RequestCode) -> Callable[[Method], Method]:
    """Mark a method of a RequestProcessor as the method that answers requests with these codes."""

    def mark(method: Method) -> Method:
        method.answered = codes  # type: ignore[attr-defined]
        return method

    return mark


def is_current(text: str | None, version: DataVersion) -> bool:
    """Return whether `text`, the data version of the pages that a client has read, is still the current `version`."""
    return bool(text) and DataVersion.from_dict(as_object(loose_json.loads(text or ""), "a data version")) == version


class RequestProcessor:
    """The base of processors. Each request is answered by the method with the decorator `answers(code)`."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """Return the decorated methods of this class, without inherited methods, by request code."""
        methods = [(name, getattr(method, "answered", ())) for name, method in vars(type(self)).items()]
        return {code: getattr(self, name) for name, codes in methods for code in codes}
