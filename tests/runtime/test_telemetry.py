"""Invalid settings of `tracing.opentelemetry`. Nightly tests check the spans that a collector receives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqd.errors import ConfigError
from rmqd.plugins.model_options import load_runnable


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_not_installed_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "grpc")
    with pytest.raises(ConfigError, match=f"tracing.opentelemetry: {name} is grpc; expected http/protobuf"):
        load(tmp_path)


def load(folder: Path) -> None:
    path = folder / "rmqd.yaml"
    group = {"subscriptions": {"T": "*"}, "handler": {"plugin": "log"}}
    document = {"nameserver": "a:1", "tracing": {"opentelemetry": True}, "groups": {"mailer": group}}
    path.write_text(json.dumps(document))
    load_runnable(path, environ={})
