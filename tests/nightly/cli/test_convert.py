"""`rmqd convert`: settings of Java and Spring become a configuration, and every omission is reported.

The core of these tests is in tests/cli/test_convert.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import _as_on_a_machine_without_rmqd
from tests.cli.in_process import rmqd
from tests.cli.test_convert import converted, folder

__all__ = ["_as_on_a_machine_without_rmqd", "folder"]


def test_listeners_share_their_settings_in_defaults_and_missing_names_are_marked() -> None:
    listeners = "rocketmq.consumer.listeners"
    text = (
        f"rocketmq.name-server=a:1\n{listeners}.a.orders=true\n{listeners}.b.orders=true\nrocketmq.pull-batch-size=8\n"
    )
    config, remarks = converted("spring.properties", text)
    group = {"subscriptions": {"orders": "*"}, "handler": {"plugin": "handlers:handle"}}
    assert config == {"nameserver": "a:1", "defaults": {"pull_batch_size": 8}, "groups": {"a": group, "b": group}}
    assert remarks == []
    config, remarks = converted("spring.properties", "rocketmq.name-server=a:1\n")
    assert config == {"nameserver": "a:1", "groups": {"GROUP": group | {"subscriptions": {"TOPIC": "*"}}}}
    assert [remark.partition("; ")[0] for remark in remarks] == ["the file names no group", "the file names no topic"]


def test_a_file_that_is_not_yaml_is_refused_with_its_line() -> None:
    Path("application.yml").write_text("a: 1\n---\nb: 2\n")
    result = rmqd("convert", "application.yml")
    assert result.code == 1
    assert result.err.startswith("application.yml:2:1: a second document starts here")
