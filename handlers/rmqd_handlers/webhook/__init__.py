"""`webhook`: sends messages as HTTP POSTs, one or many per call."""

from rmqd_handlers.webhook.handler import Webhook

__all__ = ["Webhook"]
