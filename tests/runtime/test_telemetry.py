"""What is refused of `tracing.opentelemetry`. Nightly tests have the spans, as a collector gets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rmqd.config.model.root_model import RootConfig, TracingConfig
from rmqd.daemon.groups.group_reload import refused_changes
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import load_runnable


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_not_installed_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "grpc")
    with pytest.raises(ConfigError, match=f"tracing.opentelemetry: {name} is grpc; expected http/protobuf"):
        load(tmp_path)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"tracing.opentelemetry: .*not installed.*pip install 'rmqd\[otel\]'"):
        load(tmp_path)


def test_a_reload_cannot_switch_it() -> None:
    off, on = (RootConfig(tracing=TracingConfig(opentelemetry=value)) for value in (False, True))
    [refused] = refused_changes(off, on)
    assert refused.startswith("tracing.opentelemetry: cannot change from False to True while the daemon runs")
    assert refused_changes(on, on) == ()


def load(folder: Path) -> None:
    path = folder / "rmqd.yaml"
    group = {"subscriptions": {"T": "*"}, "handler": {"plugin": "log"}}
    document = {"nameserver": "a:1", "tracing": {"opentelemetry": True}, "groups": {"mailer": group}}
    path.write_text(json.dumps(document))
    load_runnable(path, environ={})
