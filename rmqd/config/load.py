"""Loads a configuration: from a path to a valid RootConfig, or to an error with all of its problems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic import ValidationError

from rmqd.client.options import NAMESRV_ADDR
from rmqd.config.model.root import RootConfig
from rmqd.config.problems import ConfigProblem, Finding, Path
from rmqd.config.reading.data import ConfigData
from rmqd.config.reading.files import find_config
from rmqd.config.reading.source import Source, read_source
from rmqd.config.rules.groups import group_findings, root_findings
from rmqd.errors import ConfigError

LISTEN_VARIABLE: Final = "RMQD_HTTP_LISTEN"


def load_config(
    path: FilePath | None = None, overrides: Sequence[str] = (), *, environ: Mapping[str, str] = os.environ
) -> RootConfig:
    """Read, check and return the configuration. Raises ConfigError with every problem.

    Without a path, the default paths are searched. Plugins are not checked; `rmqd.plugins.runnable` checks them too.
    """
    loading = Loading(source_of(path, overrides, environ=environ), environ)
    return loading.trusted()


def source_of(
    path: FilePath | None = None, overrides: Sequence[str] = (), *, environ: Mapping[str, str] = os.environ
) -> Source:
    """Read the files of a configuration. Raises ConfigError if there is none."""
    try:
        found = find_config(path, environ)
    except FileNotFoundError as error:
        raise ConfigError([str(error)]) from None
    return read_source(found, overrides)


class Loading:
    """Collects the problems of a configuration, at most one at a path and below it.

    Checking continues after a problem: the wrong value is removed, and the rest is validated again. So a user sees all
    mistakes at once. A key is not reported as missing if its value was removed, or if a file could not be read.
    """

    def __init__(self, source: Source, environ: Mapping[str, str] = os.environ) -> None:
        data = ConfigData(source, environ)
        _take_listen_address(data, environ)
        _take_name_servers(data, environ)
        self.problems = [*source.problems, *data.problems]
        self._source = source
        self._places = data.places
        self._reported: set[Path] = set(data.unusable)
        self.config = self._validated(data.values)
        for group in self.config.groups.values():
            group.remember_places(self._places)
        self.add(root_findings(self.config))
        for name, group in self.config.groups.items():
            namespace = self.config.cluster_of(name).client.namespace
            self.add(group_findings(name, group, namespace), ("groups", name))

    def trusted(self) -> RootConfig:
        """Return the configuration. Raises ConfigError with all problems, if there are any."""
        if self.problems:
            raise ConfigError(self._sorted_problems())
        return self.config

    def _sorted_problems(self) -> list[object]:
        """Return the problems in the order of files and lines, followed by problems of the command line."""
        files = {str(file): index for index, file in enumerate(self._source.files)}

        def order(problem: ConfigProblem) -> tuple[int, int, int]:
            file, _, position = problem.place.partition(":")
            line, _, column = position.rpartition(":")
            if not (line.isdigit() and column.isdigit()):
                return len(files), 0, 0
            return files.get(file, len(files)), int(line), int(column)

        return [*sorted(self.problems, key=order)]

    def _validated(self, values: dict[str, Any]) -> RootConfig:
        """Return the configuration without its wrong values, so that rules can check the rest."""
        from rmqd.config.model.errors import problems_of

        while True:
            try:
                return RootConfig.model_validate(values)
            except ValidationError as error:
                for path, problem, missing in problems_of(error, RootConfig, self._places):
                    if not missing or self._source.complete:
                        self.report(path, problem)
                    _remove(values, path[:-1] if missing else path)

    def add(self, findings: Iterable[Finding], prefix: Path = ()) -> None:
        """Report findings of rules. Their paths start at `prefix`."""
        for finding in findings:
            path = (*prefix, *finding.path)
            instead = None if finding.instead is None else (*prefix, *finding.instead)
            if finding.missing:
                # The key may be missing because its value was wrong, or because its file could not be read.
                if not self._source.complete or self._is_faulty(path) or self._is_faulty(instead):
                    continue
                place = self._places.of_key(path[:-1])
            else:
                place = self._places.of_key(path) if finding.at_key else self._places.of(path)
            self.report(path, ConfigProblem(place, path, finding.message), at_key=finding.at_key)

    def _is_faulty(self, path: Path | None) -> bool:
        return path is not None and any(known[: len(path)] == path for known in self._reported)

    def report(self, path: Path, problem: ConfigProblem, *, at_key: bool = False) -> None:
        """Add a problem, unless there is one at this path or above it."""
        if any(path[:length] in self._reported for length in range(len(path) + 1)):
            return
        self.problems.append(problem)
        if not at_key:  # a group with an invalid name may have other problems too
            self._reported.add(path)


def _take_listen_address(data: ConfigData, environ: Mapping[str, str]) -> None:
    """Use $RMQD_HTTP_LISTEN unless the configuration sets http.listen. Images set this variable."""
    http, address = data.values.setdefault("http", {}), environ.get(LISTEN_VARIABLE)
    path = ("http", "listen")
    if address and isinstance(http, dict) and "listen" not in http and path not in data.unusable:
        http["listen"] = address
        data.places.values[path] = f"${LISTEN_VARIABLE}"


def _take_name_servers(data: ConfigData, environ: Mapping[str, str]) -> None:
    """Use the name servers in $NAMESRV_ADDR unless the configuration sets some, like Java's client."""
    addresses, named = environ.get(NAMESRV_ADDR), data.values.keys() | {path[0] for path in data.unusable}
    if addresses and named.isdisjoint(("nameserver", "nameserver_url", "clusters")):
        data.values["nameserver"] = addresses
        data.places.values["nameserver",] = f"${NAMESRV_ADDR}"


def _remove(values: dict[str, Any], path: Path) -> None:
    """Remove a key. A list is removed as a whole, because a list without one of its items has another meaning."""
    inner: Any = values
    for step in path[:-1]:
        if step not in inner:
            return  # it was already removed with an enclosing value
        if isinstance(inner[step], list):
            del inner[step]
            return
        inner = inner[step]
    inner.pop(path[-1], None)
