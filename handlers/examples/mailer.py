"""A handler with a bit of everything: options, a decision for each message, and a retry where somebody else fails."""

from __future__ import annotations

import json
from typing import Protocol

import pydantic

from rmqd import Batch, Message, Retry


class Post(Protocol):
    """What sends mails; raises OSError where it cannot for now."""

    def send(self, sender: str, receiver: str, text: str) -> None:
        """Send one mail."""


class StandardOutput:
    """A post that only says what it would send."""

    def send(self, sender: str, receiver: str, text: str) -> None:
        """Print one line."""
        print(f"mail from {sender} to {receiver}: {text}")


class Mailer:
    """Sends a mail for each order that is paid."""

    class Options(pydantic.BaseModel):
        """What the configuration says below `handler.options`."""

        sender: str

    def __init__(self, options: Options, post: Post | None = None) -> None:
        self.options = options
        self.post = post or StandardOutput()

    def handle(self, batch: Batch) -> None:
        """An order that cannot be read never can be; a post that is closed may be open in a minute."""
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
