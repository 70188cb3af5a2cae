"""Log events of the daemon's engine when it loads a handler."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.config.model.group_model import GroupConfig
from rmqd.daemon.groups.group_engine import LocalEngine
from rmqd.plugins.model_options import options_of_group
from rmqd.runtime.clock import SystemClock


def logged(plugin: str, options: dict[str, Any], **keys: Any) -> list[Any]:
    """Load a handler and return the log events."""
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
def test_a_handler_with_fewer_connections_than_calls_is_logged(plugin: str, options: dict[str, Any]) -> None:
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
    assert logged(plugin, {**options, "max_connections": 7}) == []  # no event for the default of 20 calls
