"""A handler whose library is not installed is listed and checked anyway; its start names the extra to install."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from rmqd.errors import ConfigError
from rmqd.plugins.handler_catalogue import describe_installed, load_handler
from tests.config.configuration import GROUP, load

MODULES = {
    "postgresql": "psycopg_pool",
    "webhook": "httpx",
    "redis": "redis",
    "kafka": "confluent_kafka",
    "celery": "celery",
    "sql": "sqlalchemy",
    "parquet": "pyarrow",
}
OPTIONS: dict[str, dict[str, object]] = {
    "postgresql": {"url": "postgresql://", "table": "orders", "columns": {"id": "keys"}},
    "webhook": {"url": "http://localhost/"},
    "redis": {"url": "redis://localhost", "key": "orders"},
    "celery": {"url": "redis://localhost", "task": "shop.tasks.pack"},
    "sql": {"url": "sqlite:////tmp/a", "table": "orders", "columns": {"id": "keys"}},
    "kafka": {"bootstrap_servers": "localhost:9092", "topic": "orders"},
    "parquet": {"path": "archive"},
}


@pytest.mark.parametrize("name", MODULES)
def test_the_start_says_which_extra_is_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, MODULES[name], None)  # as if it were not installed
    handler = json.dumps({"plugin": name, "options": OPTIONS[name]})

    config = load(GROUP.replace("{plugin: log}", handler), to_run=True)
    assert [one.error for one in describe_installed() if one.name == name] == [None]
    with pytest.raises(ConfigError, match=re.escape(f"pip install './handlers[{name}]'")):
        load_handler("mailer", config.groups["mailer"])
