"""The header of the reply that brings a broker's settings."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.wire.headers.base import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponseHeader(Header):
    """The reply to GET_BROKER_CONFIG (26): how often the settings changed, a DataVersion in JSON."""

    version: str
