"""Parses YAML into a tree with the line and column of each key and value.

Plain values follow the core schema of YAML 1.2: `true` and `false` are the only flags (not `on` or `no`), and `12:30`
or `2026-01-01` stay text. Keys are always text.

`${NAME}`, `${NAME:-default}` and `${file:PATH}` are replaced in parsed values, so that the content of a variable or of
a file cannot become YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from rmqd.config.problems import ConfigProblem, KeyPath
from rmqd.runtime.files import MAX_FILE_BYTES, read_small_file
from rmqd.runtime.value_kinds import SubstitutedText

MAX_DEPTH: Final = 50
MAX_VALUES: Final = 100_000

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = "<<"
_CORE_SCHEMA: Final = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
}


@dataclass(slots=True)
class Scalar:
    place: str
    value: str | int | float | bool | None


@dataclass(slots=True)
class YamlList:
    place: str
    nodes: list[Node]


@dataclass(slots=True)
class YamlEntry:
    """A key's location, and its value."""

    place: str
    node: Node
    inherited: bool = False
    """Whether the key of a group comes from `defaults`."""


@dataclass(slots=True)
class YamlMapping:
    place: str
    entries: dict[str, YamlEntry]


Node = Scalar | YamlList | YamlMapping


@dataclass(slots=True)
class YamlParseResult:
    """The result of parsing a text: its tree, and its problems."""

    tree: Node | None
    """None if the text is not YAML, or empty."""
    problems: list[ConfigProblem] = field(default_factory=list)


def tree_of(value: Any, place: str) -> Node:
    """Convert a Python value to a tree. All nodes have the location `place`."""
    if isinstance(value, Mapping):
        return YamlMapping(place, {str(key): YamlEntry(place, tree_of(inner, place)) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return YamlList(place, [tree_of(inner, place) for inner in value])
    return Scalar(place, value)


def yaml_text(value: object) -> str:
    """Return a value as YAML, on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1 << 30)
    return text.removesuffix("...\n").strip()


def yaml_lines(
    value: Mapping[str, Any], comment: Callable[[KeyPath], str] = lambda _: "", path: KeyPath = ()
) -> Iterator[str]:
    """Yield a mapping as lines of YAML, one for each key. `comment` returns a text to append to a path's line."""
    for key, inner in value.items():
        line = f"{'  ' * len(path)}{yaml_text(key)}:"
        if isinstance(inner, Mapping) and inner:
            yield line
            yield from yaml_lines(inner, comment, (*path, key))
        else:
            yield f"{line} {yaml_text(inner)}{comment((*path, key))}"


def merge_nodes(base: Node, top: Node, *, inherited: bool = False) -> Node:
    """Return the keys of both mappings; for a key in both, `top` wins. `inherited` marks keys that only `base` has."""
    if not isinstance(base, YamlMapping) or not isinstance(top, YamlMapping):
        return top
    entries = {key: replace(entry, inherited=inherited) for key, entry in base.entries.items()}
    for key, entry in top.entries.items():
        node = merge_nodes(entries[key].node, entry.node, inherited=inherited) if key in entries else entry.node
        entries[key] = YamlEntry(entry.place, node)
    return YamlMapping(top.place, entries)


def read_tree(text: str, file: str) -> YamlParseResult:
    """Read one YAML document; places are `file:line:column`. Problems are returned, never raised."""
    builder = _Builder(text, file)
    try:
        return YamlParseResult(builder.document(), builder.problems)
    except yaml.MarkedYAMLError as error:
        return YamlParseResult(None, [_syntax_problem(error, text, file)])
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = f"{file}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        # One of PyYAML's two parsers reports the character as a number, the other as text.
        code = error.character if isinstance(error.character, int) else ord(error.character)
        return YamlParseResult(None, [ConfigProblem(place, (), f"the character U+{code:04X} is not allowed in YAML")])
    except _Refused as error:
        return YamlParseResult(None, [ConfigProblem(error.place, (), str(error))])


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> ConfigProblem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    reason = ", ".join(filter(None, [error.context, error.problem]))
    lines = text.splitlines()
    written = lines[line] if line < len(lines) else ""
    hint = ""
    if "${" in written:
        hint = "; write ${...} in quotes inside {} and []"
    elif written[column:].startswith("\t"):
        hint = "; indent with spaces instead of the tab"
    elif "alias" in reason or written[column:].startswith(("@", "`", "%")):
        hint = '; write the value in quotes, such as "*"'
    elif "mapping values" in reason:
        hint = "; write a value with a colon in quotes, end the line above with a colon, or correct the indentation"
    elif error.context_mark is not None and error.context_mark.line != line and "\n" in text:
        hint = f"; the mistake may be as early as line {error.context_mark.line + 1}, where this part begins"
    return ConfigProblem(f"{file}:{line + 1}:{column + 1}", (), f"this is not valid YAML: {reason}{hint}")


def _kind_of(text: str) -> str:
    return next((kind for kind, pattern in _CORE_SCHEMA.items() if pattern.fullmatch(text)), "str")


class _Refused(Exception):
    """The whole document is rejected: it is too deep or too large, or has an unknown alias."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place


class _Builder:
    """Builds the tree from the parser's events.

    PyYAML's own composer recurses in C without a limit, so a file with a hundred thousand brackets would end the
    process.
    """

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self._anchors: dict[str, Node] = {}
        self._values = 0
        self.problems: list[ConfigProblem] = []

    def document(self) -> Node | None:
        """Return the only document of the text; None if there is none."""
        tree: Node | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _Refused(self._place(event), "a second document starts here; expected one per file")
                tree = self._build(next(self._events), ())
        return tree

    def _build(self, event: yaml.Event, path: KeyPath) -> Node:
        self._count(event)
        if len(path) > MAX_DEPTH:
            raise _Refused(self._place(event), f"values are nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _Refused(self._place(event), f"alias *{event.anchor} does not refer to a complete earlier value")
            return self._copy(self._anchors[event.anchor], event)
        node: Node
        if isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, path, "map")
            node = self._mapping(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, path, "seq")
            node = YamlList(self._place(event), [])
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                node.nodes.append(self._build(item, (*path, len(node.nodes))))
        else:
            assert isinstance(event, yaml.ScalarEvent)
            node = Scalar(self._place(event), self._value(event, path))
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _mapping(self, start: yaml.Event, path: KeyPath) -> YamlMapping:
        entries: dict[str, YamlEntry] = {}
        merged: dict[str, YamlEntry] = {}
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise _Refused(self._place(key), "a key is not text; expected text, and quotes around {{...}}")
            name = str(key.value)
            value = self._build(next(self._events), (*path, name))
            if name == _MERGE and not key.style:
                merged = {**self._merged(value, (*path, name)), **merged}
            elif name in entries:
                message = f"duplicate key, set before at {entries[name].place}; remove one of them"
                self.problems.append(ConfigProblem(self._place(key), (*path, name), message))
            else:
                entries[name] = YamlEntry(self._place(key), value)
        return YamlMapping(self._place(start), {**merged, **entries})

    def _merged(self, value: Node, path: KeyPath) -> dict[str, YamlEntry]:
        """Return the entries that `<<: *other` merges. If several mappings have a key, the first mapping wins."""
        merged: dict[str, YamlEntry] = {}
        for source in value.nodes if isinstance(value, YamlList) else [value]:
            if isinstance(source, YamlMapping):
                merged = {**source.entries, **merged}
            else:
                message = "only a mapping can be merged; expected an alias of a mapping, or a list of them"
                self.problems.append(ConfigProblem(source.place, path, message))
        return merged

    def _copy(self, node: Node, alias: yaml.Event) -> Node:
        """Return a copy of an alias's value, which `--set` can change independently. The copied nodes count towards
        MAX_VALUES, because aliases of aliases multiply.
        """
        self._count(alias)
        if isinstance(node, YamlMapping):
            copies = {key: YamlEntry(entry.place, self._copy(entry.node, alias)) for key, entry in node.entries.items()}
            return YamlMapping(node.place, copies)
        if isinstance(node, YamlList):
            return YamlList(node.place, [self._copy(item, alias) for item in node.nodes])
        return Scalar(node.place, node.value)

    def _count(self, event: yaml.Event) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _Refused(self._place(event), f"the document has more than {MAX_VALUES} values, with resolved aliases")

    def _value(self, event: yaml.ScalarEvent, path: KeyPath) -> str | int | float | bool | None:
        text = str(event.value)
        plain = not event.style  # a text without quotes has the style None or "", depending on PyYAML's parser
        if event.tag is None or event.tag == "!":
            kind = _kind_of(text) if plain and event.tag is None else "str"
        else:
            kind = event.tag.removeprefix(_TAG)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return text.lower() == "true"
            if kind == "int":
                return int(text, 0 if text[:2] in ("0o", "0x") else 10)
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            message = f"{text[:40]!r} is not a valid {kind}; expected a shorter number, or text in quotes"
            self.problems.append(ConfigProblem(self._place(event), path, message))
            return None
        self._check_tag(event, path, "str")
        return text

    def _check_tag(self, event: yaml.NodeEvent, path: KeyPath, kind: str) -> None:
        tag: str | None = getattr(event, "tag", None)
        if tag not in (None, "!", _TAG + kind):
            message = f"the YAML tag {tag.replace(_TAG, '!!')} is not supported; expected no tag"
            self.problems.append(ConfigProblem(self._place(event), path, message))

    def _place(self, event: yaml.Event) -> str:
        mark = event.start_mark
        assert mark is not None
        return f"{self._file}:{mark.line + 1}:{mark.column + 1}"


_REFERENCE: Final = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}|\$\{")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL | re.ASCII)
_FORMS: Final = "expected ${NAME}, ${NAME:-default}, ${file:PATH}, and $${ for a literal ${"


class SubstitutionError(ValueError):
    """A reference `${...}` has no value, or is not in a valid form."""


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """Replace each reference `${...}`. Raises SubstitutionError. File paths are relative to the working directory."""
    if "${" not in text:
        return text

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        if match[2] is None:
            raise SubstitutionError(f"a ${{ without its }}; {_FORMS}")
        return _value_of(match[2], environ)

    return SubstitutedText(_REFERENCE.sub(replacement, text))


def is_utf8(text: str) -> bool:
    """Return whether an environment variable or argument was UTF-8. Python reads other bytes as lone surrogates."""
    return text.isascii() or text == text.encode("utf-8", "replace").decode()


def _value_of(reference: str, environ: Mapping[str, str]) -> str:
    if reference.startswith("file:"):
        return _content(reference.removeprefix("file:"))
    match = _NAME.fullmatch(reference)
    if match is None:
        raise SubstitutionError(f"${{{reference}}} is not valid; {_FORMS}")
    name, default = match.groups()
    value = environ.get(name)
    if value is not None and not is_utf8(value):
        raise SubstitutionError(f"the environment variable {name} is not UTF-8; expected text")
    if value or (value is not None and default is None):
        return value
    if default is not None:
        return default
    raise SubstitutionError(
        f"the environment variable {name} is not set; set it, or add a default with ${{{name}:-default}}"
    )


def _content(name: str) -> str:
    path = Path(name).absolute()
    try:
        content = read_small_file(path)
        if len(content) > MAX_FILE_BYTES:
            raise SubstitutionError(f"the file {path} is longer than 1MiB; expected a file with one value")
        return content.decode("utf-8").rstrip("\r\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise SubstitutionError(f"the file {path} cannot be read: {reason}; expected a readable file") from None
    except UnicodeDecodeError:
        raise SubstitutionError(f"the file {path} is not UTF-8; expected text") from None
