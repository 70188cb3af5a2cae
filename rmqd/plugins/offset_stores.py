"""Finds the class of an offset store by its entry point in `rmqd.offset_stores`, or as `module:attribute`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rmqd.config.model.group import BROKER, GroupConfig
from rmqd.errors import ConfigError
from rmqd.offset_stores import OffsetStore
from rmqd.plugins.entry_points import why
from rmqd.plugins.form import OptionsForm, PluginFaultError, plugin_fault
from rmqd.plugins.lookup import find_object, located

ENTRY_POINT_GROUP: Final = "rmqd.offset_stores"
_METHODS: Final = ("open", "close", "take", "transaction", "write")


def load_offset_store(group: str, settings: GroupConfig) -> Callable[[], OffsetStore] | None:
    """Return a factory for a group's custom store; None if brokers keep the offsets. Both raise ConfigError."""
    if settings.offset_store.plugin == BROKER:
        return None
    try:
        target: Any = find_object("offset store", ENTRY_POINT_GROUP, settings.offset_store.plugin)
        if not inspect.isclass(target) or not all(callable(getattr(target, name, None)) for name in _METHODS):
            raise plugin_fault(f"the plugin is not an offset store; expected a class with {', '.join(_METHODS)}")
        form = replace(OptionsForm.of(target, 0), model=getattr(target, "Options", None))
        bound = form.bound(target, form.validated("offset store", settings.offset_store.options))
    except PluginFaultError as error:
        raise ConfigError(list[object](located(group, settings, ("offset_store",), error))) from error

    def make() -> OffsetStore:
        try:
            store: OffsetStore = bound()
        except Exception as error:
            message = f"its constructor failed: {why(error)}"
            raise ConfigError([settings.problem(group, ("offset_store", "options"), message)]) from error
        return store

    return make
