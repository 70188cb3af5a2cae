"""Loads a configuration that can run: its handlers, pipelines and strategies exist, and accept their options."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from rmqd.config.load import Loading, source_of
from rmqd.config.model.group import GroupConfig
from rmqd.config.model.root import RootConfig
from rmqd.config.problems import ConfigProblem
from rmqd.config.reading.source import Source
from rmqd.config.rules.groups import run_findings
from rmqd.errors import ConfigError
from rmqd.plugins.entry_points import look_again
from rmqd.plugins.handlers import handler_problems
from rmqd.plugins.hooks import hook_problems
from rmqd.plugins.offset_stores import load_offset_store
from rmqd.plugins.pipelines import pipeline_loaders
from rmqd.plugins.strategies import load_strategy


def load_runnable(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    groups: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> RootConfig:
    """Load a configuration as `load_config` does, and check the plugins of its groups. Raises ConfigError with all
    problems.

    The plugins of all groups, or of the groups in `groups`, are imported, and their options are validated.
    """
    return runnable(source_of(path, overrides, environ=environ), groups=groups, environ=environ)


def runnable(source: Source, *, groups: Collection[str] = (), environ: Mapping[str, str] = os.environ) -> RootConfig:
    """Do the same for a configuration whose files were already read."""
    loading = Loading(source, environ)
    look_again()
    loading.add(run_findings(loading.config, groups))
    for name, group in loading.config.groups.items():
        if not groups or name in groups:
            problems = [*handler_problems(name, group), *hook_problems(name, group)]
            for load in (*pipeline_loaders(group), load_strategy, load_offset_store):
                problems += _problems_of(load, name, group)
            for problem in problems:
                loading.report(problem.path, problem)
    return loading.trusted()


def _problems_of(load: Callable[[str, GroupConfig], object], name: str, group: GroupConfig) -> list[ConfigProblem]:
    """Return the problems of a plugin, which is imported but not run."""
    try:
        load(name, group)
    except ConfigError as error:
        return [problem for problem in error.problems if isinstance(problem, ConfigProblem)]
    return []
