"""`rmqd schema`, and `rmqd convert`, which converts settings of RocketMQ's Java client or Spring starter."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import Output
from rmqd.cli.terminal.output import say, say_json
from rmqd.errors import ExitCode
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.config import load
    from rmqd.config import problems as config_problems
    from rmqd.config.model import forms, java_names, root_model
    from rmqd.config.reading import config_source, yaml_tree

GROUP, TOPIC, HANDLER = "GROUP", "TOPIC", "handlers:handle"
_NAMING: Final = {
    "group": ("consumerGroup", "group"),
    "topic": ("topic", "topics", "subscription", "registerTopics"),
    "expression": ("selectorExpression", "subExpression", "tag", "tags"),
    "type": ("selectorType", "expressionType"),
}
"""The names of Java settings that together declare a group and its subscriptions."""
_ELSEWHERE: Final = {
    "rocketmq.producer.": "a setting of producers, which have no configuration here",
    "rocketmq.pull-consumer.": "a setting of pull consumers; pass it to rmqd.PullConsumer",
    "spring.cloud.stream.": "Spring Cloud Stream's settings are not converted; write the groups by hand",
}


def schema(output: Output = "json") -> None:
    """Print the JSON Schema of the configuration.

    Editors use it to complete and check rmqd.yaml. The schema is JSON with either output format.

    Example: rmqd schema > rmqd.schema.json
    """
    say_json(load.config_schema())


def convert(
    file: Annotated[Path, typer.Argument(help="A .properties, .yml or .yaml file", exists=True, dir_okay=False)],
    output: Output = "table",
) -> None:
    """Print the settings of a Java client or of Spring's RocketMQ starter as an rmqd configuration.

    FILE has Java's parameters (consumerGroup, consumeThreadMax, ...), or Spring's (rocketmq.name-server,
    rocketmq.consumer.group, ...). Each setting without a counterpart becomes a comment with the reason, and a line on
    standard error. Secrets become references to environment variables. The configuration is YAML; -o json prints
    {config, remarks}.

    Example: rmqd convert application.yml > rmqd.yaml
    """
    suffix = file.suffix.lower()
    if suffix not in (".properties", ".yml", ".yaml", ""):  # /dev/stdin has no suffix
        raise typer.BadParameter(f"{file}: expected a .properties, .yml or .yaml file", param_hint="FILE")
    try:
        text = file.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        fail(ExitCode.FAILURE, f"{file} cannot be read: {error.strerror or error}")
    conversion = JavaConversion(_properties(text, file) if suffix == ".properties" else _spring_yaml(text, file))
    if output == "json":
        say_json({"config": conversion.config, "remarks": conversion.remarks})
    else:
        say([f"# Converted from {file}. Next: replace {HANDLER} by your handler, and run rmqd check."])
        say(f"# {remark}" for remark in conversion.remarks)
        say(yaml_tree.yaml_lines(conversion.config))
    if not sys.stdout.isatty():  # a terminal has shown the remarks already
        say(conversion.remarks, err=True)


@dataclass(frozen=True, slots=True)
class JavaSetting:
    """One setting of the Java file: its full dotted name, its value, and its place as FILE:LINE."""

    key: str
    value: Any
    place: str

    def is_one_of(self, names: tuple[str, ...]) -> bool:
        """Return whether the part after the last dot is one of `names`, in camel case, snake case or kebab case."""
        last = java_names.normalized(self.key.rpartition(".")[2])
        return any(last == java_names.normalized(name) for name in names)


class JavaConversion:
    """Converts Java settings to an rmqd configuration, `config`. `remarks` explain settings that need attention."""

    def __init__(self, settings: list[JavaSetting]) -> None:
        self.config: dict[str, Any] = {}
        self.remarks: list[str] = []
        self._places: dict[config_problems.KeyPath, JavaSetting] = {}
        settings = sorted(settings, key=lambda one: not one.key.startswith("rocketmq."))  # names of Spring win
        is_spring = any(one.key.startswith("rocketmq.") for one in settings)
        values = {one.key: str(one.value) for one in settings}
        known: list[JavaSetting] = []
        others: list[str] = []
        for one in settings:
            reason = next((why for part, why in _ELSEWHERE.items() if one.key.startswith(part)), None)
            if reason:
                self._remark(one, reason)
            elif is_spring and "." in one.key and not one.key.startswith("rocketmq."):
                others.append(one.key)
            else:
                known.append(replace(one, value=self._with_references(one, values)))
        self._convert_groups(known)
        if others:
            self.remarks.append(f"not settings of RocketMQ: {', '.join(others)}")
        self._drop_refused()

    def _convert_groups(self, settings: list[JavaSetting]) -> None:
        """Convert the settings that declare groups and subscriptions, and add all other settings to these groups."""
        groups: dict[str, dict[str, Any]] = {}
        naming: dict[str, JavaSetting] = {}
        rest = []
        for one in settings:
            listener = re.fullmatch(r"rocketmq\.consumer\.listeners\.(.+)\.([^.]+)", one.key.removesuffix(".enabled"))
            what = next((what for what, names in _NAMING.items() if one.is_one_of(names)), None)
            if listener and str(one.value).lower() == "true":
                groups.setdefault(listener[1], {})[listener[2]] = "*"
            elif listener:
                self._remark(one, f"this listener is off; group {listener[1]} does not subscribe to {listener[2]}")
            elif what in naming:
                self._remark(one, f"not used, because {naming[what].key} is set too; write a second group by hand")
            elif what:
                naming[what] = one
            else:
                rest.append(one)
        if naming or not groups:
            name, topics, expression, kind = (str(naming[what].value) if what in naming else "" for what in _NAMING)
            wanted = {"sql": expression} if kind == "SQL92" else expression or "*"
            groups.setdefault(name or GROUP, {}).update(
                {topic.strip(): wanted for topic in (topics or TOPIC).split(",")}
            )
            for what, given in ((GROUP, name), (TOPIC, topics)):
                if not given:
                    self.remarks.append(f"the file names no {what.lower()}; replace {what} by the listener's")
        shared = "defaults" if len(groups) > 1 else next(iter(groups))
        # consumeThreadMin is converted first and wins: Java's thread pool has an unbounded queue, and never grows
        for one in sorted(rest, key=lambda one: one.is_one_of(("consumeThreadMax",))):
            self._convert(one, shared)
        own: dict[str, dict[str, Any]] = self.config.pop("groups", {})
        self.config["groups"] = {}
        for name, subscriptions in groups.items():
            group = own.get(name, {})
            group["handler"] = {"plugin": HANDLER} | group.get("handler", {})
            self.config["groups"][name] = {"subscriptions": subscriptions} | group

    def _convert(self, one: JavaSetting, group: str) -> None:
        """Add one setting to the configuration, under the corresponding key, or add a remark."""
        key = one.key.removeprefix("rocketmq.")
        is_code = java_names.find_entry(key, java_names.KEYS) in ("handler.plugin", "offset_store.plugin")
        if is_code:  # the value is a class name; for example, MessageListenerOrderly corresponds to a consume mode
            key = str(one.value)
        # a name of one word, such as `url`, counts only if it is listed
        is_known = java_names.find_entry(key, java_names.KEYS) or "_" in java_names.snake_case(key)
        place = forms.place_of_java_name(root_model.RootConfig, key) if is_known else None
        model = forms.model_at(root_model.RootConfig, place[:-1]) if place else None
        if place is None or model is None or place == ("groups",):
            reason = java_names.find_entry(key, java_names.REASONS)
            remark = f"rmqd has no key for it: {reason}" if reason else "unknown; it is not a setting of the consumer"
            self._remark(one, "Java code; write it again in Python" if is_code else remark)
            return
        if place[0] == "groups":
            place = ("defaults", *place[2:]) if group == "defaults" else ("groups", group, *place[2:])
        if place in self._places:
            self._remark(one, f"not used, because {self._places[place].key} sets the same key")
            return
        self._places[place] = one
        value = java_names.value_from_java(forms.kind_of(forms.keys_of(model)[str(place[-1])]), key, one.value)
        if config_source.is_secret(place) and "${" not in str(one.value):
            value = f"${{RMQD_{str(place[-1]).upper()}}}"
            self.remarks.append(f"{one.place}: {one.key}: a secret; set it as the environment variable {value[2:-1]}")
        inner = self.config
        for step in place[:-1]:
            inner = inner.setdefault(str(step), {})
        inner[str(place[-1])] = one.value if value is None else value

    def _with_references(self, one: JavaSetting, values: dict[str, str]) -> Any:
        """Return the value with each `${name:default}` replaced by the named setting or an environment variable."""

        def reference(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            if name in values:
                return values[name]
            variable = re.sub(r"\W", "_", name.replace("-", "")).upper()  # Spring's rule for environment variables
            if variable != name:
                self.remarks.append(f"{one.place}: {one.key}: {name} is the environment variable {variable} here")
            return f"${{{variable}}}" if default is None else f"${{{variable}:-{default}}}"

        return (
            re.sub(r"\$\{([^{}:]+)(?::([^{}]*))?\}", reference, one.value) if isinstance(one.value, str) else one.value
        )

    def _drop_refused(self) -> None:
        """Remove values that rmqd does not accept. Values with variables stay, because they are not known yet."""
        tree = yaml_tree.tree_of(self.config, "FILE:1:1")
        assert isinstance(tree, yaml_tree.YamlMapping)
        for problem in load.ConfigProblems(config_source.ConfigFiles((Path("FILE"),), tree), {}).problems:
            one = self._places.get(problem.path)
            if one and "${" not in str(one.value) and not config_source.is_secret(problem.path):
                self._remark(one, f"not converted: {problem.message}")
                inner = self.config
                for step in problem.path[:-1]:
                    inner = inner[str(step)]
                del inner[str(problem.path[-1])]

    def _remark(self, one: JavaSetting, reason: str) -> None:
        self.remarks.append(f"{one.place}: {one.key}: {reason}")


_LINE: Final = re.compile(r"\s*((?:\\.|[^\s:=\\])+)\s*[:=\s]?\s*(.*)", re.DOTALL)


def _properties(text: str, file: Path) -> list[JavaSetting]:
    """Read a .properties file of Java: lines `key=value`, `key: value` or `key value`, escapes and continued lines."""
    settings, logical, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start if logical else number
        logical += line.lstrip()
        if not logical or logical[0] in "#!":
            logical = ""
            continue
        if (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1]
            continue
        if match := _LINE.fullmatch(logical):
            settings.append(JavaSetting(_unescaped(match[1]), _unescaped(match[2]), f"{file}:{start}"))
        logical = ""
    return settings


def _unescaped(text: str) -> str:
    plain = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
    escape = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
    return escape.sub(lambda match: chr(int(match[1], 16)) if match[1] else plain.get(match[2], match[2]), text)


def _spring_yaml(text: str, file: Path) -> list[JavaSetting]:
    reading = yaml_tree.read_tree(text, str(file))
    if reading.problems:
        fail(ExitCode.FAILURE, problems=map(str, reading.problems))
    if reading.tree is None:
        fail(ExitCode.FAILURE, f"{file} is empty")
    return list(_flat(reading.tree, ""))


def _flat(node: yaml_tree.Node, key: str) -> Iterator[JavaSetting]:
    line = node.place.rpartition(":")[0]
    if isinstance(node, yaml_tree.YamlMapping):
        for name, entry in node.entries.items():
            yield from _flat(entry.node, f"{key}.{name}" if key else name)
    elif isinstance(node, yaml_tree.YamlList):
        yield JavaSetting(key, [one.value for one in node.nodes if isinstance(one, yaml_tree.Scalar)], line)
    elif node.value is not None:
        yield JavaSetting(key, node.value, line)
