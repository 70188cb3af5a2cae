"""The client's settings: configurable ones, and fixed ones on which the handler relies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, SecretStr

OURS: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "delivery.timeout.ms": "retry_for",
    "message.timeout.ms": "retry_for",
    "enable.idempotence": None,
    "acks": None,
    "request.required.acks": None,
    "message.send.max.retries": None,
    "retries": None,
    "transactional.id": None,
}
"""Settings that `client` cannot contain, with the option to use instead."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "rmqd",
    # as in Kafka's Java clients: all clients assign a key to the same partition
    "partitioner": "murmur2_random",
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    # the handler reports failed connections once per batch; the client would log every attempt
    "log_level": 2,
}


def client_settings(servers: str, retry_for_seconds: float, given: Mapping[str, SecretStr]) -> dict[str, Any]:
    """Return the client's settings: idempotent, and confirmed by all in-sync replicas."""
    return {
        **DEFAULTS,
        **{name: value.get_secret_value() for name, value in given.items()},
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "acks": "all",
        "delivery.timeout.ms": round(retry_for_seconds * 1000),
    }


def _as_setting(value: object) -> object:
    """Return a number or flag from YAML in the client's notation."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _not_ours(settings: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in settings:
        if name in OURS:
            instead = f"use the option {OURS[name]}" if OURS[name] else "the handler relies on it"
            raise ValueError(f"{name} cannot be set here: {instead}")
    return settings


ClientSettings = Annotated[
    dict[str, Annotated[SecretStr, BeforeValidator(_as_setting, json_schema_input_type=str | int | float | bool)]],
    AfterValidator(_not_ours),
]
