"""Finds allocate strategies: rmqd's own, and others by entry point.

An entry point of `rmqd.allocate_strategies` is a function or a callable object with the signature of
`AllocateMessageQueueStrategy`. Only the configured one is imported.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from rmqd.config.model.group import GroupConfig
from rmqd.config.problems import Path
from rmqd.consumer.allocate import (
    ALLOCATE_STRATEGIES,
    STRATEGY_NAMES,
    AllocateMessageQueueStrategy,
    AllocateStrategy,
    ByConfig,
    ByMachineRoom,
)
from rmqd.errors import ConfigError
from rmqd.plugins.entry_points import EntryPointError, import_object, installed, not_installed
from rmqd.typed.callables import is_async
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import wrap_namespace

ENTRY_POINT_GROUP: Final = "rmqd.allocate_strategies"

_KEY: Final[Path] = ("allocate_strategy",)
_FORM: Final = "(group, client_id, queues, client_ids)"
_ACCEPTED: Final = (
    f"expected a function of {_FORM} that returns the member's queues, or an instance that is called that way"
)


def load_strategy(group: str, settings: GroupConfig, namespace: str = "") -> AllocateStrategy:
    """Return the strategy of a group. It receives the brokers' names. Raises ConfigError with all problems."""
    name = settings.allocate_strategy
    try:
        return AllocateStrategy(name, _built_in(settings, namespace) or _installed(name))
    except EntryPointError as error:
        raise ConfigError([settings.problem(group, _KEY, str(error))]) from error


def _built_in(settings: GroupConfig, namespace: str) -> AllocateMessageQueueStrategy | None:
    if settings.allocate_strategy == "by_config":
        named = [(wrap_namespace(one.topic, namespace), one) for one in settings.allocate_queues]
        return ByConfig(tuple(MessageQueue(topic, one.broker_name, one.queue_id) for topic, one in named))
    if settings.allocate_strategy == "by_machine_room":
        return ByMachineRoom(frozenset(settings.machine_rooms))
    return ALLOCATE_STRATEGIES.get(settings.allocate_strategy)


def _installed(name: str) -> AllocateMessageQueueStrategy:
    entry_points = installed(ENTRY_POINT_GROUP)
    if name not in entry_points:
        raise not_installed("allocate strategy", name, dict.fromkeys([*STRATEGY_NAMES, *entry_points]))
    strategy: Any = import_object("allocate strategy", entry_points[name], otherwise="a unique name")
    _check_form(entry_points[name][0].value, strategy)
    found: AllocateMessageQueueStrategy = strategy
    return found


def _check_form(where: str, strategy: Any) -> None:
    if inspect.isclass(strategy):
        raise EntryPointError(f"{where} is a class; {_ACCEPTED}")
    if not callable(strategy):
        raise EntryPointError(f"{where} cannot be called; {_ACCEPTED}")
    if is_async(strategy):
        raise EntryPointError(f"{where} is asynchronous, but a strategy only computes; {_ACCEPTED}")
    try:
        inspect.signature(strategy).bind("group", "client_id", [], [])
    except TypeError:
        raise EntryPointError(f"{where} cannot be called with {_FORM}; {_ACCEPTED}") from None
    except ValueError:
        pass  # a builtin without a signature
