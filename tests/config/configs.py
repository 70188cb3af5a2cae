"""Configurations for tests, without files."""

from __future__ import annotations

from typing import Any

from rmqd.config.model.root_model import RootConfig


def config(*names: str, changes: dict[str, dict[str, Any]] | None = None, **top: Any) -> RootConfig:
    """Groups of these names that subscribe to orders; `changes` adds keys to a group, `top` to the root."""
    groups = {
        name: {"subscriptions": {"orders": "*"}, "handler": {"plugin": "log"}} | (changes or {}).get(name, {})
        for name in names
    }
    return RootConfig.model_validate({"nameserver": "127.0.0.1:1", "groups": groups} | top)
