"""The client's own settings: those that options pass on, and those that the handler's promises rest on."""

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
"""What the options cannot set in `client`, and the option to use in its place."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "rmqd",
    # as Kafka's clients in Java have it: the same key goes to the same partition, whoever sends
    "partitioner": "murmur2_random",
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    # connections that fail are told of by the handler, once a batch; the client would do so at each attempt
    "log_level": 2,
}


def client_settings(servers: str, retry_for_seconds: float, given: Mapping[str, SecretStr]) -> dict[str, Any]:
    """The settings of the client: idempotent, and confirmed by all replicas in sync."""
    return {
        **DEFAULTS,
        **{name: value.get_secret_value() for name, value in given.items()},
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "acks": "all",
        "delivery.timeout.ms": round(retry_for_seconds * 1000),
    }


def _as_setting(value: object) -> object:
    """What YAML reads as a number or a truth, as the client reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _not_ours(settings: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in settings:
        if name in OURS:
            instead = f"use the option {OURS[name]}" if OURS[name] else "the handler's promises rest on it"
            raise ValueError(f"{name} cannot be set here: {instead}")
    return settings


ClientSettings = Annotated[
    dict[str, Annotated[SecretStr, BeforeValidator(_as_setting, json_schema_input_type=str | int | float | bool)]],
    AfterValidator(_not_ours),
]
