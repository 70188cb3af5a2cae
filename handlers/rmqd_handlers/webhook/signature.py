"""A keyed hash of the content. The receiver verifies the sender with it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Final, Literal

Scheme = Literal["standard_webhooks", "sha256"]
PREFIX: Final = "whsec_"


def key_of(secret: str, scheme: Scheme) -> bytes:
    """Return the bytes of a secret. Raises ValueError if a Standard Webhooks secret is not base64."""
    if scheme == "standard_webhooks" and secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except ValueError:
            raise ValueError(f"signing_secret starts with {PREFIX}, but the rest is not valid base64") from None
    return secret.encode()


def signed(scheme: Scheme, key: bytes, call_id: str, content: bytes) -> dict[str, str]:
    """Return the headers that sign a call, with the current time."""
    if scheme == "sha256":
        return {"X-Hub-Signature-256": f"sha256={hmac.new(key, content, hashlib.sha256).hexdigest()}"}
    timestamp = str(int(time.time()))
    over = b".".join((call_id.encode(), timestamp.encode(), content))
    digest = base64.b64encode(hmac.new(key, over, hashlib.sha256).digest()).decode()
    return {"webhook-id": call_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{digest}"}
