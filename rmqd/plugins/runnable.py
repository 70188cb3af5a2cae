"""Loads a configuration that can be run: its handlers, pipelines and strategies exist, and accept their options."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rmqd.config.load import Loading, source_of
from rmqd.config.model.root import RootConfig
from rmqd.config.reading.source import Source
from rmqd.config.rules.groups import run_findings
from rmqd.plugins.entry_points import look_again
from rmqd.plugins.handlers import handler_problems
from rmqd.plugins.hooks import hook_problems
from rmqd.plugins.offset_stores import offset_store_problems
from rmqd.plugins.pipelines import pipeline_problems
from rmqd.plugins.strategies import strategy_problems


def load_runnable(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    groups: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> RootConfig:
    """Load a configuration as `load_config` does, and check what its groups need. Raises ConfigError with all problems.

    Plugins of all groups, or of those named in `groups`, are imported, and their options validated.
    """
    return runnable(source_of(path, overrides, environ=environ), groups=groups, environ=environ)


def runnable(source: Source, *, groups: Collection[str] = (), environ: Mapping[str, str] = os.environ) -> RootConfig:
    """The same for a configuration whose files were read already."""
    loading = Loading(source, environ)
    look_again()
    loading.add(run_findings(loading.config, groups))
    for name, group in loading.config.groups.items():
        if not groups or name in groups:
            plugins = (*handler_problems(name, group), *pipeline_problems(name, group))
            others = (*strategy_problems(name, group), *hook_problems(name, group), *offset_store_problems(name, group))
            for problem in (*plugins, *others):
                loading.report(problem.path, problem)
    return loading.trusted()
