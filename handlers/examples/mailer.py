"""An example handler: options, a decision for each message, and a retry if another service fails."""

from __future__ import annotations

import json
from typing import Protocol

import pydantic

from rmqd import Batch, Message, Retry


class Post(Protocol):
    """Sends mails. Raises OSError if it is unavailable."""

    def send(self, sender: str, receiver: str, text: str) -> None:
        """Send one mail. Raises OSError."""


class StandardOutput:
    """Prints the mails instead of sending them."""

    def send(self, sender: str, receiver: str, text: str) -> None:
        print(f"mail from {sender} to {receiver}: {text}")


class Mailer:
    """Sends a mail for each paid order."""

    class Options(pydantic.BaseModel):
        """The configuration below `handler.options`."""

        sender: str

    def __init__(self, options: Options, post: Post | None = None) -> None:
        self.options = options
        self.post = post or StandardOutput()

    def handle(self, batch: Batch) -> None:
        """Dead-letter an unreadable order, which will never be readable; retry if the mail service is unavailable."""
        for message in batch:
            customer = _customer(message)
            if customer is None:
                batch.dead_letter(message, "an order without a customer")
                continue
            try:
                self.post.send(self.options.sender, customer, f"order {message.keys} is paid")
            except OSError as error:
                raise Retry(delay_level=5) from error
            batch.ack(message)


def _customer(message: Message) -> str | None:
    try:
        order = json.loads(message.body)
    except ValueError:
        return None
    customer = order.get("customer") if isinstance(order, dict) else None
    return customer if isinstance(customer, str) else None
