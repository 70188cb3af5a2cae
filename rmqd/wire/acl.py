"""The signature that access control checks on each request. ACL 1.0 (RocketMQ 4) and 2.0 (5) use the same one.

It covers the values of all ext fields in the order of their names, then the body.
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
    """The keys that a client signs with. Never log them. `security_token` belongs to temporary keys."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def fields(self) -> dict[str, str]:
        """The ext fields that signing adds to a request, except the signature."""
        if not self.security_token:
            return {ACCESS_KEY: self.access_key}
        return {ACCESS_KEY: self.access_key, SECURITY_TOKEN: self.security_token}

    def sign(self, content: bytes) -> bytes:
        """Return the signature of this content as a header holds it."""
        inner, outer = _keyed(self.secret_key)
        inner, outer = inner.copy(), outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)

    def signed(self, ext_fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return a request's ext fields with access key and signature. Do not add fields afterwards."""
        fields = {**ext_fields, **self.fields()}
        fields.pop(SIGNATURE, None)
        fields[SIGNATURE] = self.sign(signed_content(fields, body)).decode()
        return fields


@lru_cache(maxsize=8)
def _keyed(secret_key: str) -> tuple[hashlib._Hash, hashlib._Hash]:
    """Return the inner and outer hash of HMAC-SHA1, already keyed. Copying them is twice as fast as `hmac.digest`."""
    key = secret_key.encode()
    key = (hashlib.sha1(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return hashlib.sha1(bytes(byte ^ 0x36 for byte in key)), hashlib.sha1(bytes(byte ^ 0x5C for byte in key))


def signed_content(ext_fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes that a request's signature covers."""
    values = "".join([ext_fields[name] for name in sorted(ext_fields) if name != SIGNATURE]).encode()
    return values + body if body else values
