"""Converts the arguments of `run_handler` to a checked group, and provides the clock that skips the group's delays."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmqd.config.load import ConfigProblems
from rmqd.config.model.group_model import GroupConfig, HandlerConfig
from rmqd.config.reading import yaml_tree
from rmqd.config.reading.config_source import ConfigFiles
from rmqd.config.rules.group_rules import run_findings
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.errors import ConfigError
from rmqd.handler_api.batch import LoadedHandler
from rmqd.plugins.handler_catalogue import load_handler
from rmqd.plugins.model_options import load_runnable_source, options_of_group
from rmqd.plugins.option_form import PluginFaultError
from rmqd.runtime.clock import SystemClock, wait_within


class JumpingClock(SystemClock):
    """The machine's clock plus the skipped time.

    Only `wall`, `call_later` and a worker's `sleep` use the skipped time. `monotonic` is the machine's clock, because
    heartbeats, locks, deadlines and durations of handler calls need real time.
    """

    def __init__(self) -> None:
        self.jumped_seconds = 0.0
        self.pauses: dict[asyncio.Event, float] = {}  # the sleeps of workers, with their ends in seconds since 1970
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def wall(self) -> float:
        """Return seconds since 1970, including the skipped time. May be called in any thread."""
        return time.time() + self.jumped_seconds

    def call_later(  # type: ignore[override]  # waits by this clock, not by the event loop's clock
        self, delay_seconds: float, callback: Callable[..., object], *args: Any
    ) -> None:
        """Schedule a callback. It is called in `jump_to`, when this clock has jumped to the end of the delay."""
        due = self.wall() + delay_seconds
        heapq.heappush(self._timers, (due, next(self._order), lambda: callback(*args)))

    async def sleep(self, seconds: float, /) -> None:
        """Sleep. If a worker pauses between two calls of its handler, the sleep also ends when this clock jumps."""
        task = asyncio.current_task()
        if task is None or not task.get_name().startswith("worker:"):
            await asyncio.sleep(seconds)
            return
        is_over = asyncio.Event()
        self.pauses[is_over] = self.wall() + seconds
        try:
            await wait_within(self, seconds, is_over.wait())  # the limit is real time, if this clock never jumps so far
        finally:
            self.pauses.pop(is_over, None)

    def next_due(self) -> float | None:
        """Return when the first callback or pause is due, in seconds since 1970; None if none waits."""
        return min((*self.pauses.values(), *(due for due, _, _ in self._timers[:1])), default=None)

    def jump_to(self, wall: float) -> None:
        """Jump to `wall`, in seconds since 1970, unless that time has passed. Then end what is due."""
        self.jumped_seconds += max(0.0, wall - self.wall())
        for is_over in [one for one, due in self.pauses.items() if due <= self.wall()]:
            del self.pauses[is_over]  # the worker counts as busy from now on, and not only from its next turn
            is_over.set()
        while self._timers and self._timers[0][0] <= self.wall():
            heapq.heappop(self._timers)[2]()


_PLACE = "run_handler"
_HANDLER_KEYS = HandlerConfig.model_fields.keys() - {"plugin"}


@dataclass(frozen=True, slots=True)
class GroupToRun:
    """A group with a valid configuration. `given` is the handler if the caller passed an object, not a name."""

    name: str
    settings: GroupConfig
    given: object = None

    @property
    def package(self) -> str:
        """The top-level package of the handler's module; empty if the handler is named by its entry point."""
        plugin = "" if self.settings.handler is None else self.settings.handler.plugin
        return plugin.partition(":")[0].partition(".")[0] if ":" in plugin else ""

    def options(self, state_dir: Path) -> ConsumerOptions:
        """Return the consumer's options. Raises ConfigError.

        Tests of a handler do not need the circuit breaker, the interval and the rate of pulls, and their waits would
        take real time. `deduplicate` is disabled too: if its store belongs to production, a lease there would make the
        group skip a message.
        """
        options = options_of_group(self.settings, self.name, str(state_dir))
        if options.consume_mode == "pop" and options.failures is not None:
            # no pauses: if the broker's clock jumped over them, popped messages in flight would become visible
            options = replace(options, failures=replace(options.failures, backoff_seconds=0.0))
        return replace(options, circuit=None, deduplication=None, pull_interval_seconds=0.0, pull_rate_limit=0)

    def make_handler(self) -> LoadedHandler:
        """Create the handler without starting it. Raises ConfigError, and any error of the handler's constructor."""
        try:
            return load_handler(self.name, self.settings, self.given)
        except ConfigError as error:
            fault = error.__cause__
            if not isinstance(fault, PluginFaultError) or fault.__cause__ is None or self.given is None:
                raise
            failure = fault.__cause__
        raise failure  # the constructor's exception, with its own cause, which a test may expect


def group_of(handler: object, topic: str, name: str, keys: Mapping[str, Any]) -> GroupToRun:
    """Return a group of one topic, from a handler and the group's keys as in YAML.

    `concurrency` and `options`, which are below `handler` in YAML, are top-level keys in `keys`. Raises ConfigError.
    """
    section = {"subscriptions": {topic: keys.get("expression", "*")}} if topic else {}
    section |= {key: value for key, value in keys.items() if key != "expression" and key not in _HANDLER_KEYS}
    given = None
    if isinstance(handler, Mapping):
        section["handler"] = dict(handler)
    elif isinstance(handler, str):
        section["handler"] = {"plugin": handler}
    else:
        given, section["handler"] = _plugin_object(handler), {"plugin": _name(handler)}
    section["handler"] |= {key: keys[key] for key in _HANDLER_KEYS & keys.keys()}
    return GroupToRun(name, check_group(name, yaml_tree.tree_of(section, _PLACE), by_name=given is None), given)


def check_group(name: str, section: yaml_tree.Node, *, by_name: bool = True) -> GroupConfig:
    """Check a group's section of a configuration. With `by_name`, also import its handler and validate its options.

    By default, `consume_from_where` is `first_offset`. Raises ConfigError with all problems.
    """
    place = section.place
    if isinstance(section, yaml_tree.YamlMapping):
        first = yaml_tree.YamlEntry(place, yaml_tree.Scalar(place, "first_offset"))
        section = yaml_tree.YamlMapping(place, {"consume_from_where": first} | section.entries)
    root: dict[str, yaml_tree.Node] = {
        "nameserver": yaml_tree.Scalar(place, "127.0.0.1:9876"),  # required, but the test's own broker is used
        "groups": yaml_tree.YamlMapping(place, {name: yaml_tree.YamlEntry(place, section)}),
    }
    tree = yaml_tree.YamlMapping(place, {key: yaml_tree.YamlEntry(place, node) for key, node in root.items()})
    source = ConfigFiles((Path(place.partition(":")[0]),), tree)
    config = load_runnable_source(source) if by_name else ConfigProblems(source).checked_config()
    settings = config.groups[name]
    findings = list(run_findings(config))
    if findings:
        raise ConfigError([settings.problem(name, one.path[2:], one.message, at_key=one.at_key) for one in findings])
    return settings


def _plugin_object(handler: object) -> object:
    """Return the handler as a plugin: a function or a class. For an object, a class with the object's methods."""
    if callable(handler) or not hasattr(handler, "handle"):
        return handler
    methods = {name: getattr(handler, name) for name in ("handle", "start", "stop") if hasattr(handler, name)}
    return type(type(handler).__name__, (), {name: staticmethod(method) for name, method in methods.items()})


def _name(handler: object) -> str:
    named: Any = inspect.unwrap(handler) if callable(handler) else handler
    named = named if inspect.isroutine(named) or inspect.isclass(named) else type(named)
    return f"{getattr(named, '__module__', '')}:{getattr(named, '__qualname__', type(handler).__qualname__)}"
