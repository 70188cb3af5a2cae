"""The signature of a request for access control: the same for ACL 1.0 (RocketMQ 4) and ACL 2.0 (RocketMQ 5).

The signature is an HMAC-SHA1 of the values of all ext fields, sorted by field name, followed by the body.
"""

from __future__ import annotations

import hashlib
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
_BLOCK_BYTES: Final = 64  # block size of SHA-1
SECRET_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
"""Ext fields with secrets. Never log them."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys that sign a client's requests. Never log them. `security_token` is set only for temporary keys."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def signing_fields(self) -> dict[str, str]:
        """Return the ext fields that signing adds to a request, except the signature."""
        if not self.security_token:
            return {ACCESS_KEY: self.access_key}
        return {ACCESS_KEY: self.access_key, SECURITY_TOKEN: self.security_token}

    def sign(self, content: bytes) -> bytes:
        """Return the signature of `content` in base64, the value of the ext field Signature."""
        inner, outer = _keyed(self.secret_key)
        inner, outer = inner.copy(), outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)

    def signed(self, ext_fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return a request's ext fields with access key and signature. Adding fields later breaks the signature."""
        fields = {**ext_fields, **self.signing_fields()}
        fields.pop(SIGNATURE, None)
        fields[SIGNATURE] = self.sign(signed_content(fields, body)).decode()
        return fields


@lru_cache(maxsize=8)
def _keyed(secret_key: str) -> tuple[hashlib._Hash, hashlib._Hash]:
    """Return HMAC-SHA1's inner and outer hash, fed with the key. Copying both is twice as fast as `hmac.digest`."""
    key = secret_key.encode()
    key = (hashlib.sha1(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return hashlib.sha1(bytes(byte ^ 0x36 for byte in key)), hashlib.sha1(bytes(byte ^ 0x5C for byte in key))


def signed_content(ext_fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes that a request's signature covers."""
    values = "".join([ext_fields[name] for name in sorted(ext_fields) if name != SIGNATURE]).encode()
    return values + body if body else values
