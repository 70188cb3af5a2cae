"""The sample handler: charges an order and mails its customer. It acknowledges, retries and dead-letters."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from rmqd.handler_api import Batch

MAIL_SECONDS: Final = 0.06


class PaymentServiceError(Exception):
    """The payment service did not answer; it may answer the next time."""


async def handle(batch: Batch) -> None:
    """Handle each order. Returning acknowledges, `dead_letter` dead-letters at once, and raising retries."""
    for message in batch:
        try:
            order = json.loads(message.body)
        except ValueError as error:
            batch.dead_letter(message, f"not JSON: {error}")
            continue
        if message.tags == "paid":
            await charge(order, message.reconsume_times)
        await asyncio.sleep(MAIL_SECONDS)  # a stand-in for sending the mail


async def charge(order: dict[str, Any], attempts_before: int) -> None:
    """A stand-in for a payment service, which fails as often as the order says. Raises PaymentServiceError."""
    if attempts_before < order.get("simulated_payment_failures", 0):
        raise PaymentServiceError("the payment service does not answer")
