"""A keyed hash over what is sent, by which the receiver knows the sender."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Final, Literal

Scheme = Literal["standard_webhooks", "sha256"]
PREFIX: Final = "whsec_"


def key_of(secret: str, scheme: Scheme) -> bytes:
    """The bytes of a secret. Raises ValueError where Standard Webhooks' form is not base64."""
    if scheme == "standard_webhooks" and secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except ValueError:
            raise ValueError(f"signing_secret begins with {PREFIX}, and what follows is not base64") from None
    return secret.encode()


def signed(scheme: Scheme, key: bytes, call_id: str, content: bytes) -> dict[str, str]:
    """The headers that sign a call, for the time at which it is sent."""
    if scheme == "sha256":
        return {"X-Hub-Signature-256": f"sha256={hmac.new(key, content, hashlib.sha256).hexdigest()}"}
    timestamp = str(int(time.time()))
    over = b".".join((call_id.encode(), timestamp.encode(), content))
    digest = base64.b64encode(hmac.new(key, over, hashlib.sha256).digest()).decode()
    return {"webhook-id": call_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{digest}"}
