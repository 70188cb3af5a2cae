"""Configurations with good and bad values at every key, drawn by Hypothesis."""

from __future__ import annotations

import re

import yaml
from hypothesis import strategies as st
from pydantic import BaseModel

from rmqd.config.model.forms import keys_of
from rmqd.config.model.group_model import GroupConfig, HandlerConfig
from rmqd.config.model.root_model import ClientConfig, ClusterConfig, HttpConfig, RootConfig
from rmqd.errors import ConfigError
from tests.config.configuration import load

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JUNK = st.recursive(
    SCALARS | st.sampled_from(["${X}", "*", "5s", "1MiB", "log", "a:1", "shop:mail"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def section(model: type[BaseModel], **inner: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """A mapping with some keys of a section, each with a good or a bad value."""
    return st.fixed_dictionaries({}, optional={name: inner.get(name, JUNK) | JUNK for name in keys_of(model)})


CONFIGURATIONS = section(
    RootConfig,
    client=section(ClientConfig),
    clusters=st.dictionaries(st.sampled_from(["tokyo", "default"]), section(ClusterConfig), max_size=2),
    http=section(HttpConfig),
    groups=st.dictionaries(
        st.sampled_from(["mailer", "b c", "7"]), section(GroupConfig, handler=section(HandlerConfig)), max_size=2
    ),
)


def check_problems_have_places(data: dict[str, object]) -> None:
    """Fail if the configuration neither loads nor has problems that each name their line, column and key."""
    try:
        load(yaml.safe_dump(data, allow_unicode=True), to_run=True)
    except ConfigError as error:
        lines = [str(problem) for problem in error.problems]
        assert lines
        assert len(lines) == len(set(lines))
        assert all(re.match(r"test\.yaml:\d+:\d+: \S", line) and "\n" not in line for line in lines), lines
