"""Functions that write and load configurations, for the tests of this room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rmqd.config.load import load_config
from rmqd.config.model.root_model import RootConfig
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import load_runnable

NO_VARIABLES: Mapping[str, str] = {}
GROUP = """\
nameserver: 127.0.0.1:9876
groups:
  mailer:
    subscriptions: {orders: "*"}
    handler: {plugin: log}
"""
"""A good configuration: what a test appends is on line 6, and belongs to the group if it is indented by four."""


def load(
    text: str, overrides: Sequence[str] = (), *, to_run: bool = False, environ: Mapping[str, str] = NO_VARIABLES
) -> RootConfig:
    """Write a configuration to `test.yaml` in the working directory, and load it."""
    Path("test.yaml").write_text(text)
    read = load_runnable if to_run else load_config
    return read(Path("test.yaml"), overrides, environ=environ)


def problems(
    text: str, overrides: Sequence[str] = (), *, to_run: bool = False, environ: Mapping[str, str] = NO_VARIABLES
) -> list[str]:
    """The lines that `rmqd check` prints for a configuration that must be faulty."""
    with pytest.raises(ConfigError) as caught:
        load(text, overrides, to_run=to_run, environ=environ)
    return [str(problem) for problem in caught.value.problems]
