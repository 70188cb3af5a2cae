"""What the daemon's engine says of a handler when it loads it."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.config.model.group_model import GroupConfig
from rmqd.daemon.groups.group_engine import LocalEngine
from rmqd.plugins.model_options import options_of_group
from rmqd.runtime.clock import SystemClock


def logged(plugin: str, options: dict[str, Any], **keys: Any) -> list[Any]:
    """What is logged as a group's handler is loaded."""
    handler = {"plugin": plugin, "options": options, **keys}
    settings = GroupConfig.model_validate({"subscriptions": {"orders": "*"}, "handler": handler})
    with capture_logs() as logs:
        LocalEngine(SystemClock()).load_handler("hooks", settings, options_of_group(settings, "hooks", ""))
    return logs


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("webhook", {"url": "http://127.0.0.1:1/"}),
        ("redis", {"url": "redis://127.0.0.1:1/0", "mode": "list", "key": "orders"}),
        ("celery", {"url": "redis://127.0.0.1:1/0", "task": "shop.orders.handle"}),
        ("postgresql", {"url": "postgresql://127.0.0.1:1/shop", "table": "orders", "columns": {"id": "msg_id"}}),
        ("sql", {"url": "sqlite:////tmp/none", "table": "orders", "columns": {"id": "msg_id"}}),
    ],
)
def test_a_handler_that_makes_use_of_fewer_calls_is_told_of(plugin: str, options: dict[str, Any]) -> None:
    [event] = logged(plugin, {**options, "max_connections": 7}, concurrency="auto", max_concurrency=8)
    assert event == {
        "event": "handler.calls_limited",
        "log_level": "info",
        "group": "hooks",
        "handler": plugin,
        "concurrency": 8,
        "option": "max_connections",
        "calls": 7,
    }
    assert logged(plugin, {**options, "max_connections": 7}, concurrency=7) == []
    assert logged(plugin, {**options, "max_connections": 7}) == []  # nobody has asked for the 20 that are the default
