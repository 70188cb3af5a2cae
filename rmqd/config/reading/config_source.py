"""Reads the files of a configuration and `--set` into plain data, with the location of every value."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmqd.config.model.forms import keys_of, kind_of, model_at
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.config.problems import ConfigProblem, KeyPath
from rmqd.config.reading.yaml_tree import (
    Node,
    Scalar,
    YamlEntry,
    YamlList,
    YamlMapping,
    YamlParseResult,
    is_utf8,
    merge_nodes,
    read_tree,
)
from rmqd.errors import ConfigError, ConfigMissingError
from rmqd.runtime.value_kinds import show_value

ROOT_FILE: Final = "rmqd.yaml"
GROUPS_FOLDER: Final = "groups"
DEFAULT_FILES: Final = ("config/rmqd.yaml", "/etc/rmqd/rmqd.yaml")


def find_config(option: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file or folder to load: `--config`, `$RMQD_CONFIG`, or an existing default. Raises ConfigError."""
    for name, value in (("--config", option), ("$RMQD_CONFIG", environ.get("RMQD_CONFIG"))):
        if value:
            if not Path(value).exists():
                raise ConfigError([f"{value}: no such file or folder, named by {name}"])
            return Path(value)
    for default in DEFAULT_FILES:
        if Path(default).exists():
            return Path(default)
    neither = " nor ".join(DEFAULT_FILES)
    text = f"no configuration found: neither {neither} exists; name one with --config or $RMQD_CONFIG"
    raise ConfigMissingError([text])


def config_files(path: Path) -> tuple[Path, list[Path]]:
    """Return the root file of a configuration, and the group files in `groups/` next to it. `path` may be a folder."""
    if path.is_dir():
        root_file, folder = path / ROOT_FILE, path
    elif path.name == ROOT_FILE:
        root_file, folder = path, path.parent
    else:
        return path, []
    group_files = (folder / GROUPS_FOLDER).glob("*.y*ml")
    return root_file, sorted(file for file in group_files if not file.name.startswith("."))


def configured_names(path: Path) -> dict[str, list[str]]:
    """Return the topics of each group in a configuration, without validation. Unreadable parts are omitted."""
    groups = _mapping_at(read_source(path).tree, "groups").entries
    return {name: list(_mapping_at(entry.node, "subscriptions").entries) for name, entry in groups.items()}


def _mapping_at(node: Node, key: str) -> YamlMapping:
    entry = node.entries.get(key) if isinstance(node, YamlMapping) else None
    return entry.node if entry is not None and isinstance(entry.node, YamlMapping) else YamlMapping(node.place, {})


_WITH_SECRETS: Final = ("handler", "offset_store", "sink")
_SECRET_OPTION: Final = re.compile(r"(.*_)?(password|passwd|passphrase|secret|token|secret_key|access_key|api_key)")


@dataclass(slots=True)
class ConfigFiles:
    """The tree of a configuration, and the problems found while its files were read."""

    files: tuple[Path, ...]
    tree: YamlMapping
    problems: list[ConfigProblem] = field(default_factory=list)
    complete: bool = True
    """False if a file could not be read. A missing key may then be in that file."""

    @property
    def root_place(self) -> str:
        """The first character of the first file, where a problem of the whole configuration is shown."""
        return f"{self.files[0]}:1:1"


def read_source(path: Path, overrides: Sequence[str] = ()) -> ConfigFiles:
    """Read a file, or a folder's `rmqd.yaml` and `groups/*.yaml`, and apply overrides such as `log.level=debug`.

    Files `groups/*.yaml` next to a file `rmqd.yaml` are also read. Problems are collected, not raised.
    """
    root_file, group_files = config_files(path)
    source = ConfigFiles((root_file, *group_files), YamlMapping(f"{root_file}:1:1", {}))
    root = _read_mapping(root_file, source)
    if root is not None:
        source.tree = root
    for file in group_files:
        _add_groups(file, source)
    for override in overrides:
        _override(source, override)
    _drop_notes(source.tree)
    shared = _mapping_at(source.tree, "defaults")
    for entry in _mapping_at(source.tree, "groups").entries.values():
        if isinstance(entry.node, YamlMapping):
            entry.node = merge_nodes(_inheritable(shared, entry.node), entry.node, inherited=True)
    return source


def read_file(file: Path) -> ConfigFiles:
    """Read a single file, which need not be a configuration."""
    source = ConfigFiles((file,), YamlMapping(f"{file}:1:1", {}))
    source.tree = _read_mapping(file, source) or source.tree
    return source


NOTE: Final = "x-"
"""The start of keys that are ignored: notes, and values for YAML aliases."""


def _drop_notes(node: Node) -> None:
    """Remove keys that start with `x-`. Topics with such names, and keys inside the value of an option, are kept."""
    for inner in node.nodes if isinstance(node, YamlList) else ():
        _drop_notes(inner)
    if not isinstance(node, YamlMapping):
        return
    node.entries = {key: entry for key, entry in node.entries.items() if not key.startswith(NOTE)}
    for key, entry in node.entries.items():
        if key == "options" and isinstance(entry.node, YamlMapping):
            entry.node.entries = {name: one for name, one in entry.node.entries.items() if not name.startswith(NOTE)}
        elif key == "subscriptions" and isinstance(entry.node, YamlMapping):
            for topic in entry.node.entries.values():
                _drop_notes(topic.node)
        elif key != "options":
            _drop_notes(entry.node)


_HANDLER_KEYS: Final = ("handler", "retry", "dead_letter", "deduplicate", "hooks")
_PIPELINE_KEYS: Final = ("pipeline", "sink")


def _inheritable(shared: YamlMapping, group: YamlMapping) -> YamlMapping:
    """Return the defaults that a group can use.

    A group with a pipeline does not inherit the keys of handlers. A group with a handler does not inherit the keys of
    pipelines. A group that names another plugin than the defaults does not inherit the options of the default plugin. A
    group with another sink format does not inherit any key of the default sink.
    """
    foreign = _HANDLER_KEYS if "pipeline" in group.entries else _PIPELINE_KEYS if "handler" in group.entries else ()
    entries = {key: entry for key, entry in shared.entries.items() if key not in foreign}
    for key, kind in (("handler", "plugin"), ("offset_store", "plugin"), ("pipeline", "plugin"), ("sink", "format")):
        theirs, ours = (_mapping_at(one, key).entries.get(kind) for one in (shared, group))
        if key in entries and theirs and ours and _plain_value(theirs.node) != _plain_value(ours.node):
            section = _mapping_at(shared, key)
            kept = {} if key == "sink" else {n: one for n, one in section.entries.items() if n != "options"}
            entries[key] = YamlEntry(entries[key].place, YamlMapping(section.place, kept))
    return YamlMapping(shared.place, entries)


def _plain_value(node: Node) -> object:
    return node.value if isinstance(node, Scalar) else None


def files_from_overrides(overrides: Sequence[str]) -> ConfigFiles:
    """Return a configuration that consists only of overrides, for commands without a file."""
    source = ConfigFiles((Path("--set"),), YamlMapping("--set", {}))
    for override in overrides:
        _override(source, override)
    return source


def _read_mapping(file: Path, source: ConfigFiles) -> YamlMapping | None:
    """Return the mapping in a file, or None. A file without a mapping is reported, unless it is empty."""
    reading = _read(file)
    source.problems += reading.problems
    if isinstance(reading.tree, YamlMapping):
        return reading.tree
    if isinstance(reading.tree, YamlList) or (reading.tree is not None and reading.tree.value is not None):
        shown = "a list" if isinstance(reading.tree, YamlList) else show_value(reading.tree.value)
        source.problems.append(
            ConfigProblem(reading.tree.place, (), f"the file contains {shown}; expected a mapping of keys")
        )
        source.complete = False
    elif reading.problems:
        source.complete = False
    return None


def _read(file: Path) -> YamlParseResult:
    try:
        content = file.read_bytes()
    except OSError as error:
        return YamlParseResult(
            None, [ConfigProblem(f"{file}:1:1", (), f"the file cannot be read: {error.strerror or error}")]
        )
    try:
        return read_tree(content.decode("utf-8-sig"), str(file))
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        return YamlParseResult(
            None, [ConfigProblem(f"{file}:{line}:{column}", (), "this is not UTF-8; expected text in UTF-8")]
        )


def _add_groups(file: Path, source: ConfigFiles) -> None:
    """Add the groups in a file of `groups/`: below the key `groups`, or by name, or one group with the file's name."""
    if file.suffix != ".yaml":
        message = f"only *.yaml files are read from {GROUPS_FOLDER}/; rename it to {file.stem}.yaml"
        source.problems.append(ConfigProblem(f"{file}:1:1", (), message))
        return
    content = _read_mapping(file, source)
    if content is None:
        return
    if "groups" in content.entries:
        _refuse_others(content, source)
        inner = content.entries["groups"].node
        if not isinstance(inner, YamlMapping):
            source.problems.append(ConfigProblem(inner.place, ("groups",), "not a mapping; expected groups by name"))
            return
        found = inner.entries
    elif keys_of(GroupConfig).keys() & content.entries.keys():
        found = {file.stem: YamlEntry(f"{file}:1:1", content)}
    else:
        found = content.entries
    _merge_groups(found, source)


def _refuse_others(content: YamlMapping, source: ConfigFiles) -> None:
    for key, entry in content.entries.items():
        if key != "groups" and not key.startswith(NOTE):
            message = f"this key is not allowed in a group file; move it to {source.files[0]}"
            source.problems.append(ConfigProblem(entry.place, (key,), message))


def _merge_groups(found: dict[str, YamlEntry], source: ConfigFiles) -> None:
    entry = source.tree.entries.get("groups")
    if entry is None or (isinstance(entry.node, Scalar) and entry.node.value is None):
        place = entry.place if entry else source.root_place
        entry = source.tree.entries["groups"] = YamlEntry(place, YamlMapping(place, {}))
    if not isinstance(entry.node, YamlMapping):
        return  # the models report that `groups` is not a mapping
    groups = entry.node.entries
    for name, group in found.items():
        if name in groups and not name.startswith(NOTE):
            message = f"duplicate group, first defined at {groups[name].place}; remove one of them"
            source.problems.append(ConfigProblem(group.place, ("groups", name), message))
        else:
            groups[name] = group


def _override(source: ConfigFiles, override: str) -> None:
    """Apply `a.b.c=value`. The value is YAML, or plain text if it is not valid YAML."""
    key, equals, text = override.partition("=")
    place = f"--set {key}"
    if not is_utf8(override):
        source.problems.append(ConfigProblem(place, (), "this is not UTF-8; expected text in UTF-8"))
        return
    steps = key.split(".")
    if not equals or not all(steps):
        message = "not valid; expected KEY=VALUE with a key such as log.level or groups.mailer.pull_batch_size"
        source.problems.append(ConfigProblem(place, (), message))
        return
    mapping = source.tree
    for i, step in enumerate(steps[:-1]):
        entry = mapping.entries.get(step)
        if entry is None or (isinstance(entry.node, Scalar) and entry.node.value is None):
            entry = mapping.entries[step] = YamlEntry(place, YamlMapping(place, {}))
        if not isinstance(entry.node, YamlMapping):
            message = f"cannot set {key}, because this is not a mapping; expected a key inside a mapping"
            source.problems.append(ConfigProblem(place, tuple(steps[: i + 1]), message))
            return
        mapping = entry.node
    node = _override_value(source, text, tuple(steps), place)
    mapping.entries[steps[-1]] = YamlEntry(place, node)
    for _, found in _literal_secrets(node, tuple(steps)):
        message = "all users can see this secret in `ps`; expected '${NAME}', '${file:PATH}', or the configuration file"
        source.problems.append(ConfigProblem(place, found, message))


def _literal_secrets(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the location and the path of each secret that is written literally, not as `${...}`."""
    if isinstance(node, YamlMapping):
        for key, entry in node.entries.items():
            yield from _literal_secrets(entry.node, (*path, key))
        return
    value = _plain_value(node)
    if isinstance(value, str) and value and "${" not in value and is_secret(path):
        yield node.place, path


def is_secret(path: KeyPath) -> bool:
    """Return whether the value at a path is a secret. `--set` refuses literal secrets: all users see command lines.

    Models declare secrets. Options of handlers, offset stores and sinks with names like `password` are secrets, too.
    """
    if (model := model_at(RootConfig, path[:-1])) is not None:
        field_info = keys_of(model).get(str(path[-1]))
        return field_info is not None and getattr(kind_of(field_info), "secret", False)
    group_path = path[2:] if path[0] == "groups" else path[1:] if path[0] == "defaults" else ()
    is_option = "options" in group_path[1:-1] and group_path[0] in _WITH_SECRETS
    return is_option and bool(_SECRET_OPTION.fullmatch(str(path[-1]).lower()))


def _override_value(source: ConfigFiles, text: str, path: tuple[str, ...], place: str) -> Node:
    if not text:
        return Scalar(place, "")
    reading = read_tree(text, place)
    if reading.tree is not None and not reading.problems:
        return _with_place(reading.tree, place)
    if text[0] in "[{":
        reason = reading.problems[0].message if reading.problems else "empty"
        source.problems.append(ConfigProblem(place, path, reason))
    return Scalar(place, text)  # `*` and `%RETRY%mailer` are not valid YAML, but are meant as text


def _with_place(node: Node, place: str) -> Node:
    if isinstance(node, YamlMapping):
        return YamlMapping(
            place, {key: YamlEntry(place, _with_place(entry.node, place)) for key, entry in node.entries.items()}
        )
    if isinstance(node, YamlList):
        return YamlList(place, [_with_place(item, place) for item in node.nodes])
    return Scalar(place, node.value)


def exposed_secrets(path: Path | None) -> list[ConfigProblem]:
    """Return the literal secrets in files that every user can read; an empty list if the files cannot be read."""
    try:
        source = read_source(find_config(path))
        modes = {str(file): stat.S_IMODE(file.stat().st_mode) for file in source.files}
        readable = {file: oct(mode) for file, mode in modes.items() if mode & stat.S_IROTH}
    except (ConfigError, OSError):
        return []
    found = []
    for place, where in _literal_secrets(source.tree) if readable else ():
        file = place.rpartition(":")[0].rpartition(":")[0]
        if file in readable:
            message = f"a secret in a file that every user can read ({readable[file]}); remove this permission"
            found.append(ConfigProblem(place, where, f"{message}, or write ${{NAME}} or ${{file:PATH}}"))
    return found
