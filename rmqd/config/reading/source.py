"""Reads the files of a configuration and `--set`, and merges them into one tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmqd.config.model.group import GroupConfig
from rmqd.config.model.kinds import show
from rmqd.config.problems import ConfigProblem
from rmqd.config.reading.files import GROUPS_FOLDER, config_files
from rmqd.config.reading.substitution import is_utf8
from rmqd.config.reading.yaml_tree import Entry, Items, Mapping, Node, Reading, Scalar, read_tree

ANY_NAME: Final = "NAME"


_SECRETS_OF_CLUSTERS: Final = (
    ("client", "access_key"),
    ("client", "secret_key"),
    ("client", "security_token"),
    ("client", "tls", "key_password"),
)
SECRET_KEYS: Final = (
    *_SECRETS_OF_CLUSTERS,
    *(("clusters", ANY_NAME, *secret) for secret in _SECRETS_OF_CLUSTERS),
    ("http", "token"),
)
"""Paths of secrets. `--set` refuses literal values for them, because every user can see command lines."""
_OPTIONS: Final = ("groups", ANY_NAME, "handler", "options")
_SECRET_OPTION: Final = re.compile(r"(.*_)?(password|passwd|passphrase|secret|token|secret_key|access_key|api_key)")


@dataclass(slots=True)
class Source:
    """The tree of a configuration, and the problems found while its files were read."""

    files: tuple[Path, ...]
    tree: Mapping
    problems: list[ConfigProblem] = field(default_factory=list)
    complete: bool = True
    """False if a file could not be read. A missing key may then be in that file."""

    @property
    def root_place(self) -> str:
        """The location of the whole configuration."""
        return f"{self.files[0]}:1:1"


def read_source(path: Path, overrides: Sequence[str] = ()) -> Source:
    """Read a file, or a folder's `rmqd.yaml` and `groups/*.yaml`, and apply overrides such as `log.level=debug`.

    Files `groups/*.yaml` next to a file called `rmqd.yaml` belong to it. Problems are collected, not raised.
    """
    root_file, group_files = config_files(path)
    source = Source((root_file, *group_files), Mapping(f"{root_file}:1:1", {}))
    root = _read_mapping(root_file, source)
    if root is not None:
        source.tree = root
    for file in group_files:
        _add_groups(file, source)
    for override in overrides:
        _override(source, override)
    return source


def bare_source(overrides: Sequence[str]) -> Source:
    """Return a configuration that consists only of overrides, for commands without a file."""
    source = Source((Path("--set"),), Mapping("--set", {}))
    for override in overrides:
        _override(source, override)
    return source


def _read_mapping(file: Path, source: Source) -> Mapping | None:
    """Return the mapping in a file; None if there is none, which is reported unless the file is empty."""
    reading = _read(file)
    source.problems += reading.problems
    if isinstance(reading.tree, Mapping):
        return reading.tree
    if isinstance(reading.tree, Items) or (reading.tree is not None and reading.tree.value is not None):
        shown = "a list" if isinstance(reading.tree, Items) else show(reading.tree.value)
        source.problems.append(
            ConfigProblem(reading.tree.place, (), f"the file contains {shown}; expected a mapping of keys")
        )
        source.complete = False
    elif reading.problems:
        source.complete = False
    return None


def _read(file: Path) -> Reading:
    try:
        content = file.read_bytes()
    except OSError as error:
        return Reading(None, [ConfigProblem(f"{file}:1:1", (), f"the file cannot be read: {error.strerror or error}")])
    try:
        return read_tree(content.decode("utf-8-sig"), str(file))
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        return Reading(
            None, [ConfigProblem(f"{file}:{line}:{column}", (), "this is not UTF-8; expected text in UTF-8")]
        )


def _add_groups(file: Path, source: Source) -> None:
    """Add a file of `groups/`: it contains `groups:`, or groups by name, or one group's keys under the file's name."""
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
        if not isinstance(inner, Mapping):
            source.problems.append(ConfigProblem(inner.place, ("groups",), "not a mapping; expected groups by name"))
            return
        found = inner.entries
    elif GroupConfig.model_fields.keys() & content.entries.keys():
        found = {file.stem: Entry(f"{file}:1:1", content)}
    else:
        found = content.entries
    _merge_groups(found, source)


def _refuse_others(content: Mapping, source: Source) -> None:
    for key, entry in content.entries.items():
        if key != "groups":
            message = f"this key is not allowed in a group file; move it to {source.files[0]}"
            source.problems.append(ConfigProblem(entry.place, (key,), message))


def _merge_groups(found: dict[str, Entry], source: Source) -> None:
    entry = source.tree.entries.get("groups")
    if entry is None or (isinstance(entry.node, Scalar) and entry.node.value is None):
        place = entry.place if entry else source.root_place
        entry = source.tree.entries["groups"] = Entry(place, Mapping(place, {}))
    if not isinstance(entry.node, Mapping):
        return  # the models report that `groups` is not a mapping
    groups = entry.node.entries
    for name, group in found.items():
        if name in groups:
            message = f"duplicate group, first defined at {groups[name].place}; remove one of them"
            source.problems.append(ConfigProblem(group.place, ("groups", name), message))
        else:
            groups[name] = group


def _override(source: Source, override: str) -> None:
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
            entry = mapping.entries[step] = Entry(place, Mapping(place, {}))
        if not isinstance(entry.node, Mapping):
            message = f"cannot set {key}, because this is not a mapping; expected a key inside a mapping"
            source.problems.append(ConfigProblem(place, tuple(steps[: i + 1]), message))
            return
        mapping = entry.node
    node = _override_value(source, text, tuple(steps), place)
    mapping.entries[steps[-1]] = Entry(place, node)
    for _, found in literal_secrets(node, tuple(steps)):
        message = "all users can see it in `ps`; expected '${NAME}', '${file:PATH}', or the configuration file"
        source.problems.append(ConfigProblem(place, found, message))


def literal_secrets(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Find secrets that are written literally, not as `${...}`. Yields the location and the path of each.

    An option of a handler counts as a secret if its name indicates it, such as `password`.
    """
    if isinstance(node, Mapping):
        for key, entry in node.entries.items():
            yield from literal_secrets(entry.node, (*path, key))
    elif _is_secret(path) and _is_literal(node):
        yield node.place, path


def _is_secret(path: tuple[str, ...]) -> bool:
    if any(_is_meant(secret, path) for secret in SECRET_KEYS):
        return True
    return _is_meant(_OPTIONS, path[: len(_OPTIONS)]) and bool(_SECRET_OPTION.fullmatch(path[-1].lower()))


def _is_literal(node: Node) -> bool:
    return isinstance(node, Scalar) and isinstance(node.value, str) and bool(node.value) and "${" not in node.value


def _is_meant(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    pairs = zip(pattern, path, strict=False)
    return len(pattern) == len(path) and all(one in (ANY_NAME, other) for one, other in pairs)


def _override_value(source: Source, text: str, path: tuple[str, ...], place: str) -> Node:
    if not text:
        return Scalar(place, "")
    reading = read_tree(text, place)
    if reading.tree is not None and not reading.problems:
        return _moved(reading.tree, place)
    if text[0] in "[{":
        reason = reading.problems[0].message if reading.problems else "empty"
        source.problems.append(ConfigProblem(place, path, reason))
    return Scalar(place, text)  # `*` and `%RETRY%mailer` are not valid YAML, but are meant as text


def _moved(node: Node, place: str) -> Node:
    if isinstance(node, Mapping):
        return Mapping(place, {key: Entry(place, _moved(entry.node, place)) for key, entry in node.entries.items()})
    if isinstance(node, Items):
        return Items(place, [_moved(item, place) for item in node.nodes])
    return Scalar(place, node.value)
