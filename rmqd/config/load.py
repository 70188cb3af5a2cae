"""Loads a configuration, or reports all its problems. Also returns the JSON Schema, and configurations without secrets.

These values are hidden: keys that the models declare as secrets; options with names like `password`, and options of
type SecretStr; the user, path and query of URLs; passwords inside longer texts; all values from `${...}` in options
whose meaning rmqd does not know. A hidden value is also removed from later texts of this process, such as errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from rmqd.client.client_options import NAMESRV_ADDR
from rmqd.config.model.forms import ConfigSection, fields_of, keys_of, kind_of, problems_of_error
from rmqd.config.model.group_model import Percentage
from rmqd.config.model.root_model import HttpConfig, RootConfig
from rmqd.config.problems import ConfigFinding, ConfigProblem, KeyPath, Locations
from rmqd.config.reading.config_source import NOTE, ConfigFiles, find_config, read_source
from rmqd.config.reading.yaml_tree import Node, SubstitutionError, YamlList, YamlMapping, substitute
from rmqd.config.rules.group_rules import group_findings, root_findings
from rmqd.errors import ConfigError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import HIDDEN, SECRET_WORDS, hide_possible_secret, hide_secrets_of_setting, register_secret
from rmqd.runtime.value_kinds import Duration, Size, SubstitutedText, Text, key_of_field

with import_lazily():
    from rmqd.runtime.logs import log_setup

LISTEN_VARIABLE: Final = "RMQD_HTTP_LISTEN"


def load_config(
    path: Path | None = None, overrides: Sequence[str] = (), *, environ: Mapping[str, str] = os.environ
) -> RootConfig:
    """Read, check and return the configuration. Raises ConfigError with every problem.

    Without a path, the default paths are searched. `rmqd.plugins.model_options` also checks the plugins.
    """
    return ConfigProblems(read_config_files(path, overrides, environ=environ), environ).checked_config()


def load_http(path: Path | None = None) -> HttpConfig:
    """Return the section `http` of a configuration, for commands that connect to the daemon. Raises ConfigError.

    Other sections are not used, so their variables, such as a group's `${PASSWORD}`, may be unset.
    """
    loading = ConfigProblems(read_config_files(path))
    if problems := [
        one
        for one in loading.sorted_problems()
        if one not in loading.substitution_problems or one.path[:1] == ("http",)
    ]:
        raise ConfigError([*problems])
    return loading.config.http


def read_config_files(
    path: Path | None = None, overrides: Sequence[str] = (), *, environ: Mapping[str, str] = os.environ
) -> ConfigFiles:
    """Read the files of a configuration. Raises ConfigError if there are no files."""
    return read_source(find_config(path, environ), overrides)


class ConfigProblems:
    """Collects the problems of a configuration: at most one problem for a path and all paths below that path.

    Checking continues after a problem: the wrong value is removed, and the rest is validated again. So a user sees all
    mistakes at once. A key is not reported as missing if its value was removed, or if a file could not be read.
    """

    def __init__(self, source: ConfigFiles, environ: Mapping[str, str] = os.environ) -> None:
        data = ConfigData(source, environ)
        _take_listen_address(data, environ)
        _take_name_servers(data, environ)
        self.substitution_problems = data.problems
        """The problems of values whose `${...}` could not be replaced."""
        self.problems = [*source.problems, *self.substitution_problems]
        self._source = source
        self._places = data.places
        self._reported: set[KeyPath] = set(data.unresolved_paths)
        self.config = self._validated(data.values)
        for group in self.config.groups.values():
            group.set_locations(self._places)
        self.add(root_findings(self.config))
        for name, group in self.config.groups.items():
            namespace = self.config.cluster_of(name).client.namespace
            self.add(group_findings(name, group, namespace), ("groups", name))

    def checked_config(self) -> RootConfig:
        """Return the configuration. Raises ConfigError with all problems, if there are any."""
        if self.problems:
            raise ConfigError([*self.sorted_problems()])
        return self.config

    def sorted_problems(self) -> list[ConfigProblem]:
        """Return the problems in the order of files and lines, followed by problems of the command line."""
        files = {str(file): index for index, file in enumerate(self._source.files)}

        def order(problem: ConfigProblem) -> tuple[int, int, int]:
            file, _, position = problem.place.partition(":")
            line, _, column = position.rpartition(":")
            if not (line.isdigit() and column.isdigit()):
                return len(files), 0, 0
            return files.get(file, len(files)), int(line), int(column)

        return sorted(self.problems, key=order)

    def _validated(self, values: dict[str, Any]) -> RootConfig:
        """Return the configuration without its wrong values, so that rules can check the rest."""
        while True:
            try:
                return RootConfig.model_validate(values)
            except ValidationError as error:
                for path, problem, missing in problems_of_error(error, RootConfig, self._places):
                    if not missing or (self._source.complete and path[0] != "defaults"):
                        self.report(problem)
                    _remove(values, path[:-1] if missing else path)

    def add(self, findings: Iterable[ConfigFinding], prefix: KeyPath = ()) -> None:
        """Report findings of rules. The paths of the findings are relative to `prefix`."""
        for finding in findings:
            path = (*prefix, *finding.path)
            if finding.may_be_inherited and self._places.declared_path(path) != path:
                continue
            instead = None if finding.instead is None else (*prefix, *finding.instead)
            if finding.missing:
                # The key may be missing because its value was wrong, or because its file could not be read.
                if not self._source.complete or self._is_faulty(path) or self._is_faulty(instead):
                    continue
                problem = ConfigProblem(self._places.of_missing(path), path, finding.message)
            else:
                problem = self._places.problem(path, finding.message, at_key=finding.at_key)
            self.report(problem, at_key=finding.at_key)

    def _is_faulty(self, path: KeyPath | None) -> bool:
        declared = path and self._places.declared_path(path)
        return declared is not None and any(known[: len(declared)] == declared for known in self._reported)

    def report(self, problem: ConfigProblem, *, at_key: bool = False) -> None:
        """Add a problem, unless its path, or a path above it, already has a problem."""
        path = problem.path
        if any(path[:length] in self._reported for length in range(len(path) + 1)):
            return
        self.problems.append(problem)
        if not at_key:  # the key alone is wrong, so its values may have other problems
            self._reported.add(path)


class ConfigData:
    """The plain data for the models, with `${...}` replaced, and the locations of its keys and values."""

    def __init__(self, source: ConfigFiles, environ: Mapping[str, str]) -> None:
        self.places = Locations(source.root_place)
        self.problems: list[ConfigProblem] = []
        self.unresolved_paths: set[KeyPath] = set()
        """Paths of values whose `${...}` could not be replaced. They are not in the data, but do not count as
        missing.
        """
        self._environ = environ
        self.values: dict[str, Any] = self._mapping(source.tree, ())

    def _mapping(self, mapping: YamlMapping, path: KeyPath) -> dict[str, Any]:
        data = {}
        for key, entry in mapping.entries.items():
            inner = (*path, key)
            self.places.keys[inner] = entry.place
            if entry.inherited:
                self.places.inherited.add(inner)
            value = self._plain(entry.node, inner)
            if inner not in self.unresolved_paths:
                data[key] = value
        return data

    def _plain(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, YamlMapping):
            return self._mapping(node, path)
        if isinstance(node, YamlList):
            for index, item in enumerate(node.nodes):
                self.places.keys[*path, index] = item.place
            return [self._plain(item, (*path, index)) for index, item in enumerate(node.nodes)]
        self.places.values[path] = node.place
        if not isinstance(node.value, str):
            return node.value
        try:
            return substitute(node.value, self._environ)
        except SubstitutionError as error:
            problem = ConfigProblem(node.place, self.places.declared_path(path), str(error))
            if problem not in self.problems:  # every group that inherits the value has the same problem
                self.problems.append(problem)
            # The whole list is skipped, because a list without one of its items has another meaning.
            while isinstance(path[-1], int):
                path = path[:-1]
            self.unresolved_paths.add(path)
            return None


def _take_listen_address(data: ConfigData, environ: Mapping[str, str]) -> None:
    """Use $RMQD_HTTP_LISTEN unless the configuration sets http.listen. Container images set this variable."""
    http, address = data.values.setdefault("http", {}), environ.get(LISTEN_VARIABLE)
    path = ("http", "listen")
    if address and isinstance(http, dict) and "listen" not in http and path not in data.unresolved_paths:
        http["listen"] = address
        data.places.values[path] = f"${LISTEN_VARIABLE}"


def _take_name_servers(data: ConfigData, environ: Mapping[str, str]) -> None:
    """Use the name servers in $NAMESRV_ADDR, like Java's client, unless the configuration sets name servers."""
    addresses, named = environ.get(NAMESRV_ADDR), data.values.keys() | {path[0] for path in data.unresolved_paths}
    if addresses and named.isdisjoint(("nameserver", "nameserver_url", "clusters")):
        data.values["nameserver"] = addresses
        data.places.values["nameserver",] = f"${NAMESRV_ADDR}"


def _remove(values: dict[str, Any], path: KeyPath) -> None:
    """Remove a key. A list is removed as a whole, because a list without one of its items has another meaning."""
    inner: Any = values
    for step in path[:-1]:
        if step not in inner:
            return  # the value was already removed with an enclosing value
        if isinstance(inner[step], list):
            del inner[step]
            return
        inner = inner[step]
    inner.pop(path[-1], None)


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of `rmqd.yaml`. Defaults and limits have their units, as in the file."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema |= _without_titles(RootConfig.model_json_schema())
    parts, notes = schema["$defs"], {"patternProperties": {f"^{NOTE}": dict[str, Any]()}}
    for part in (schema, schema["properties"]["groups"], schema["properties"]["clusters"], *parts.values()):
        part |= notes
    # Groups may inherit required keys from `defaults`, so the schema requires these keys only without `defaults`.
    inner = {"handler": "HandlerConfig", "pipeline": "PipelineConfig", "sink": "SinkConfig"}
    needed: dict[str, Any] = {"required": parts["GroupConfig"].pop("required")}
    needed["properties"] = {key: {"required": parts[part].pop("required")} for key, part in inner.items()}
    schema |= {
        "if": {"not": {"required": ["defaults"]}},
        "then": {"properties": {"groups": {"additionalProperties": needed, **notes}}},
    }
    for section in ConfigSection.__subclasses__():
        if (part := schema["$defs"].get(section.__name__)) is not None:
            part["properties"] = {key: part["properties"][key] for key in keys_of(section)}
            for key, field in keys_of(section).items():
                if isinstance(kind := kind_of(field), Duration | Size) and not field.is_required():
                    part["properties"][key]["default"] = kind.as_written(field.default)
    return schema | {"title": "rmqd configuration"}


def _without_titles(schema: Any, *, names: bool = False) -> Any:
    """Return the schema without pydantic's titles. With `names`, keys are property names, so `title` is kept."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value, names=not names and key in ("properties", "$defs"))
        for key, value in schema.items()
        if names or key != "title"
    }


_SECRET_NAME: Final = re.compile(rf"{SECRET_WORDS}|(?:^|[-_.])(?:auth|authorization|sas|dsn)(?:$|[-_.])", re.IGNORECASE)


def configure_log(config: RootConfig, *, worker: int | None = None, as_json: bool = False) -> None:
    """Set up this process's log as configured, and hide the configuration's secrets in all texts of the process.

    `worker`: see `configure_logging`. `as_json`: log JSON, whatever format is configured.
    """
    explicit_settings(config)
    log_format = "json" if as_json else config.log.format
    log_setup.configure_logging(config.log.level, log_format, worker=worker, namespaces=config.namespaces)


def hide_options(options: Mapping[str, Any], made: object = None) -> None:
    """Hide the secrets in a plugin's options in all texts of this process. `made` is the instance of the plugin's
    options model. All values of type SecretStr in `made` are secrets.
    """
    _value(options, only_given=False)
    for secret in _marked(made):
        (hide_secrets_of_setting if "://" in secret else register_secret)(secret)


def _marked(value: object) -> Iterator[str]:
    if isinstance(value, SecretStr | SecretBytes):
        secret = value.get_secret_value()
        yield secret if isinstance(secret, str) else secret.decode(errors="replace")
    elif isinstance(value, BaseModel):
        for _, inner in value:  # not dict(value), which would call a field named `keys`
            yield from _marked(inner)
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _marked(inner)


def settings_without_secrets(config: RootConfig) -> dict[str, Any]:
    """Return the current configuration as plain data, including defaults. Durations and sizes have units."""
    return _section(config, only_given=False)


def explicit_settings(config: RootConfig) -> dict[str, Any]:
    """Return the configuration as plain data, with only the keys that a file or `--set` sets."""
    return _section(config, only_given=True)


def _section(section: ConfigSection, only_given: bool) -> dict[str, Any]:
    shown = {}
    for name, field in fields_of(type(section)):
        if field.exclude:
            continue  # `defaults` is left out, because the groups have inherited it
        if not only_given or name in section.model_fields_set:
            shown[key_of_field(name)] = _field(field, getattr(section, name), only_given)
    return shown


def _field(field: FieldInfo, value: object, only_given: bool) -> Any:
    kind = kind_of(field)
    if isinstance(kind, Text) and kind.secret:
        return register_secret(value)
    return kind.as_written(value) if isinstance(kind, Duration | Size | Percentage) else _value(value, only_given)


def _value(value: object, only_given: bool, name: str = "") -> Any:
    if isinstance(value, ConfigSection):
        return _section(value, only_given)
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _value(inner, only_given) for key, inner in asdict(value).items() if inner not in ((), "")}
    if isinstance(value, Mapping):
        return {str(key): _named(str(key), inner, only_given) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return _items([_value(inner, only_given, name) for inner in value])
    if isinstance(value, SubstitutedText):
        return hide_possible_secret(value)
    if isinstance(value, str):
        return hide_secrets_of_setting(value)
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def _named(name: str, value: object, only_given: bool) -> Any:
    """Return the value to show for the key `name`, which users choose, such as the name of an option or a group."""
    if _SECRET_NAME.search(name) and not isinstance(value, ConfigSection) and not is_dataclass(value):
        return _hidden_whole(value)
    return _value(value, only_given, name)


def _hidden_whole(value: object) -> Any:
    """Hide a secret, and return the text to show. In a mapping or list, all values except user names are secrets."""
    if isinstance(value, bool) or value is None:
        return value
    if not isinstance(value, Mapping | list):
        return register_secret(value)
    for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        if "user" not in str(key):
            _hidden_whole(inner)
    return HIDDEN if value else value


def _items(items: list[Any]) -> list[Any]:
    """Return the list with hidden secrets: in a command's arguments, the item after `--password` is a secret."""
    for i, item in enumerate(items[:-1]):
        if isinstance(item, str) and item.startswith("-") and "=" not in item and _SECRET_NAME.search(item):
            items[i + 1] = register_secret(items[i + 1])
    return items
