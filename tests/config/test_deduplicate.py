"""`deduplicate`: the options that the engine gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.consumer.consumer_options import DeduplicationOptions
from rmqd.plugins.model_options import options_of_group
from tests.config.configuration import load

GROUP = """\
nameserver: 127.0.0.1:9876
groups:
  mailer:
    subscriptions: {orders: "*"}
    handler: {plugin: log}
"""
"""A good configuration: what a test appends is on line 6."""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def options(text: str) -> DeduplicationOptions | None:
    return options_of_group(load(f"{GROUP}    {text}\n").groups["mailer"], "mailer", "/state").deduplication


def test_the_default_store_is_a_sqlite_file_in_the_state_directory() -> None:
    by_default = DeduplicationOptions("msg_id", "sqlite", "/state/deduplicate/mailer.sqlite3", 259200.0)
    assert options("deduplicate: {}") == by_default
    assert options("auto_commit: true") is None


def test_each_key_reaches_the_engine() -> None:
    assert options("deduplicate: {by: 'property:order', store: redis, url: 'rediss://r/1', keep: 7d}") == (
        DeduplicationOptions("property:order", "redis", "rediss://r/1", 604800.0)
    )
    assert options("deduplicate: {by: keys, url: /var/claims}") == (
        DeduplicationOptions("keys", "sqlite", "/var/claims", 259200.0)
    )
