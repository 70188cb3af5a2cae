"""Prometheus: a real child process with the shipped job and rules, whose times may be shortened."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import yaml

from rmqd.runtime.value_kinds import parse_duration_seconds
from tests.deploy import PROMETHEUS
from tests.nightly.deploy.missing import require
from tests.rocketmq.spec import free_port

LOOK_BACK_SECONDS: Final = 300
STARTING: Final = 503


def shortened(text: str, factor: float) -> str:
    """The rules with every time divided by the factor: each `for`, each range, each threshold that is a time."""
    text = re.sub(r"(?<=\[)\d+[smh](?=\])", lambda found: divided(found[0], factor), text)
    text = re.sub(r"(?<= for: )\d+[smh]$", lambda found: divided(found[0], factor), text, flags=re.MULTILINE)
    return re.sub(r"\d+(?= # seconds$)", lambda found: f"{int(found[0]) / factor:g}", text, flags=re.MULTILINE)


def divided(duration: str, factor: float) -> str:
    """A duration, shortened."""
    return f"{parse_duration_seconds(duration) * 1000 / factor:.0f}ms"


class Prometheus:
    """Runs for a `with` block, and scrapes and evaluates `factor` times as often as shipped."""

    def __init__(self, folder: Path, targets: Iterable[str], factor: float, *, alertmanager: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._port = free_port(set(), (0,))
        self._folder = folder
        document = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        every = document["global"]
        self.interval_seconds = parse_duration_seconds(every["scrape_interval"]) / factor
        for name, duration in every.items():
            every[name] = divided(duration, factor)
        document["scrape_configs"][0]["static_configs"][0]["targets"] = list(targets)
        if alertmanager:
            document["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
        for name in document["rule_files"]:
            (folder / name).write_text(shortened((PROMETHEUS / name).read_text(), factor))
        self._look_back = f"{LOOK_BACK_SECONDS * 1000 / factor:.0f}ms"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    require("prometheus", package="prometheus"),
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    f"--query.lookback-delta={self._look_back}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def get(self, path: str) -> Any:
        """The data of an API response; None without a response. Raises AssertionError for a bad query."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=5) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == STARTING:
                    return None
                raise AssertionError(f"{path}: {error.read().decode()}") from None
        except OSError:
            return None

    def find(self, query: str) -> list[dict[str, Any]]:
        """The series that a query returns now."""
        data = self.get(f"query?query={quote(query)}")
        return list(data["result"]) if data else []

    def value(self, query: str) -> float:
        """The sum of a query's series; 0 if there are none."""
        return sum(float(series["value"][1]) for series in self.find(query))

    def firing(self) -> list[dict[str, str]]:
        """The labels of each firing alert, with its name as `alertname`."""
        data = self.get("alerts")
        return [alert["labels"] for alert in (data["alerts"] if data else ()) if alert["state"] == "firing"]
