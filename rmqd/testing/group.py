"""Makes a group from the arguments of `run_handler`, with the daemon's checks and errors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmqd.config.load import Loading
from rmqd.config.model.group import GroupConfig, HandlerConfig
from rmqd.config.reading import yaml_tree
from rmqd.config.reading.source import Source
from rmqd.config.rules.groups import run_findings
from rmqd.consumer.options import ConsumerOptions
from rmqd.errors import ConfigError
from rmqd.loaded_handler import LoadedHandler
from rmqd.plugins.consumer_options import options_of_group
from rmqd.plugins.form import PluginFaultError
from rmqd.plugins.handlers import load_handler
from rmqd.plugins.runnable import runnable

_PLACE = "run_handler"
_HANDLER_KEYS = HandlerConfig.model_fields.keys() - {"plugin"}


@dataclass(frozen=True, slots=True)
class GroupToRun:
    """A checked group: its name, its settings, and the handler's object if it was not given by its name."""

    name: str
    settings: GroupConfig
    given: object = None

    def options(self, state_dir: Path) -> ConsumerOptions:
        """Return the consumer's options. Raises ConfigError.

        The circuit breaker is disabled, because its waits would take real time, and it is not the subject of a
        handler's test. `deduplicate` is disabled as well: a lease in a production store would make the group skip a
        message.
        """
        return replace(options_of_group(self.settings, self.name, str(state_dir)), circuit=None, deduplication=None)

    def make_handler(self) -> LoadedHandler:
        """Create the handler without starting it. Raises ConfigError, and errors of its constructor."""
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

    `concurrency` and `options` are below `handler` in YAML, and at the top level here. Raises ConfigError.
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
    return GroupToRun(name, checked(name, yaml_tree.tree_of(section, _PLACE), by_name=given is None), given)


def checked(name: str, section: yaml_tree.Node, *, by_name: bool = True) -> GroupConfig:
    """Check a group's section of a configuration. `by_name`: also import its handler and validate the options.

    By default the group starts at the first message. Raises ConfigError with all problems.
    """
    place = section.place
    if isinstance(section, yaml_tree.Mapping):
        first = yaml_tree.Entry(place, yaml_tree.Scalar(place, "first_offset"))
        section = yaml_tree.Mapping(place, {"consume_from_where": first} | section.entries)
    root: dict[str, yaml_tree.Node] = {
        "nameserver": yaml_tree.Scalar(place, "127.0.0.1:9876"),  # required, but the test's own broker is used
        "groups": yaml_tree.Mapping(place, {name: yaml_tree.Entry(place, section)}),
    }
    tree = yaml_tree.Mapping(place, {key: yaml_tree.Entry(place, node) for key, node in root.items()})
    source = Source((Path(place.partition(":")[0]),), tree)
    config = runnable(source) if by_name else Loading(source).trusted()
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
