"""From what `run_handler` is given to a group as the daemon would run it, with the daemon's own checks and errors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqd.consumer.options import ConsumerOptions
from rmqd.daemon import yaml_tree
from rmqd.daemon.config_file import load_source
from rmqd.daemon.config_rules import run_findings
from rmqd.daemon.config_source import Source
from rmqd.daemon.group_config import GroupConfig, HandlerConfig
from rmqd.daemon.handler_plugin import HandlerFaultError
from rmqd.daemon.handler_registry import load_handler
from rmqd.errors import ConfigError
from rmqd.handler import LoadedHandler

_PLACE = "run_handler"
_HANDLER_KEYS = HandlerConfig.model_fields.keys() - {"plugin"}


@dataclass(frozen=True, slots=True)
class TestedGroup:
    """A group that can be run: its options, and its handler, made and not started."""

    __test__ = False  # what pytest would ask of a class with this name

    options: ConsumerOptions
    handler: LoadedHandler


def group_of(handler: object, topic: str, group: str, keys: Mapping[str, Any], state_dir: Path) -> TestedGroup:
    """A group of one topic, by a handler and the keys that it would have in YAML.

    `concurrency` and `options`, which stand below `handler` there, stand beside the others here. Raises ConfigError,
    or what the handler's constructor raised.
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
    return load_group(group, _tree(section), state_dir, given)


def load_group(name: str, section: yaml_tree.Node, state_dir: Path, given: object = None) -> TestedGroup:
    """A group by its section of a configuration; `given` is the handler's object, in place of its plugin's name.

    Where the section says nothing else the group starts at the first message. Raises ConfigError, or what the
    handler's constructor raised.
    """
    if isinstance(section, yaml_tree.Mapping):
        first = yaml_tree.Entry(section.place, yaml_tree.Scalar(section.place, "first_offset"))
        section.entries.setdefault("consume_from_where", first)
    place = section.place
    root: dict[str, yaml_tree.Node] = {
        "nameserver": yaml_tree.Scalar(place, "127.0.0.1:9876"),  # asked for; the broker's own is what is used
        "state_dir": yaml_tree.Scalar(place, str(state_dir)),
        "groups": yaml_tree.Mapping(place, {name: yaml_tree.Entry(place, section)}),
    }
    tree = yaml_tree.Mapping(place, {key: yaml_tree.Entry(place, node) for key, node in root.items()})
    config = load_source(Source((Path(place.partition(":")[0]),), tree), to_run=False)
    settings = config.groups[name]
    findings = list(run_findings(config))
    if findings:
        raise ConfigError([settings.problem(name, one.path[2:], one.message, at_key=one.at_key) for one in findings])
    return TestedGroup(settings.consumer_options(name, str(state_dir)), _loaded(name, settings, given))


def _loaded(name: str, settings: GroupConfig, given: object) -> LoadedHandler:
    try:
        return load_handler(name, settings, given)
    except ConfigError as error:
        fault = error.__cause__
        if isinstance(fault, HandlerFaultError) and fault.__cause__ is not None and given is not None:
            raise fault.__cause__ from None  # the constructor's own: a test is about that, not about a configuration
        raise


def _plugin_object(handler: object) -> object:
    """What a plugin could be: a function or a class. An object that was made already becomes a class of its methods."""
    if callable(handler) or not hasattr(handler, "handle"):
        return handler
    methods = {name: getattr(handler, name) for name in ("handle", "start", "stop") if hasattr(handler, name)}
    return type(type(handler).__name__, (), {name: staticmethod(method) for name, method in methods.items()})


def _name(handler: object) -> str:
    named = handler if inspect.isroutine(handler) or inspect.isclass(handler) else type(handler)
    return f"{getattr(named, '__module__', '')}:{getattr(named, '__qualname__', type(handler).__qualname__)}"


def _tree(value: Any) -> yaml_tree.Node:
    """Python's values as the tree of a configuration, which has them at this place."""
    if isinstance(value, Mapping):
        entries = {str(key): yaml_tree.Entry(_PLACE, _tree(inner)) for key, inner in value.items()}
        return yaml_tree.Mapping(_PLACE, entries)
    if isinstance(value, list | tuple):
        return yaml_tree.Items(_PLACE, [_tree(inner) for inner in value])
    return yaml_tree.Scalar(_PLACE, value)
