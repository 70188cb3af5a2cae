"""Handlers in worker processes, without a group around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rmqd.config.model.group_model import GroupConfig
from rmqd.handler_api.batch import LoadedHandler
from rmqd.plugins.model_options import options_of_group
from rmqd.plugins.worker_processes.process_calls import handler_in_processes
from rmqd.runtime.clock import SystemClock

GROUP = "pooled"


def group_config(plugin: str, *, processes: int = 1, **keys: Any) -> GroupConfig:
    """A group whose handler runs in processes; `handler` has further keys of the handler."""
    handler = {"plugin": plugin, "processes": processes, **keys.pop("handler", {})}
    return GroupConfig.model_validate({"subscriptions": {"orders": "*"}, "handler": handler, **keys})


@asynccontextmanager
async def pooled(plugin: str, **keys: Any) -> AsyncIterator[LoadedHandler]:
    """A handler whose processes run until the end of the block."""
    settings = group_config(plugin, **keys)
    handler = handler_in_processes(GROUP, settings, options_of_group(settings, GROUP, ""), SystemClock())
    assert handler.start is not None
    assert handler.stop is not None
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()
