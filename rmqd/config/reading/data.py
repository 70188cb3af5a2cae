"""Converts a configuration's tree to plain data, replaces `${...}`, and keeps the location of every value."""

from __future__ import annotations

from collections.abc import Mapping as ReadOnly
from typing import Any

from rmqd.config.problems import ConfigProblem, Path, Places
from rmqd.config.reading.source import Source
from rmqd.config.reading.substitution import SubstitutionError, substitute
from rmqd.config.reading.yaml_tree import Items, Mapping, Node


class ConfigData:
    """The plain data for the models, and the locations of its keys and values."""

    def __init__(self, source: Source, environ: ReadOnly[str, str]) -> None:
        self.places = Places(source.root_place)
        self.problems: list[ConfigProblem] = []
        self.unusable: set[Path] = set()
        """Paths of values whose `${...}` could not be replaced. They are not in the data, but do not count as
        missing.
        """
        self._environ = environ
        self.values: dict[str, Any] = self._mapping(source.tree, ())

    def _mapping(self, mapping: Mapping, path: Path) -> dict[str, Any]:
        data = {}
        for key, entry in mapping.entries.items():
            inner = (*path, key)
            self.places.keys[inner] = entry.place
            value = self._plain(entry.node, inner)
            if inner not in self.unusable:
                data[key] = value
        return data

    def _plain(self, node: Node, path: Path) -> Any:
        if isinstance(node, Mapping):
            return self._mapping(node, path)
        if isinstance(node, Items):
            for index, item in enumerate(node.nodes):
                self.places.keys[*path, index] = item.place
            return [self._plain(item, (*path, index)) for index, item in enumerate(node.nodes)]
        self.places.values[path] = node.place
        if not isinstance(node.value, str):
            return node.value
        try:
            return substitute(node.value, self._environ)
        except SubstitutionError as error:
            self.problems.append(ConfigProblem(node.place, path, str(error)))
            # The whole list is skipped, because a list without one of its items has another meaning.
            while isinstance(path[-1], int):
                path = path[:-1]
            self.unusable.add(path)
            return None
