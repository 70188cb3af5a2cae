"""The shipped dashboards as a person in front of Grafana has them: panels, and queries with variables filled."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.deploy.prometheus_process import Prometheus

FOLDER: Final = Path(__file__).parent.parent.parent / "deploy" / "grafana" / "dashboards"
FILES: Final = tuple(sorted(FOLDER.glob("*.json")))
ALL: Final = ".*"
SCRAPES_IN_A_RATE: Final = 8  # Grafana takes four, which one late scrape on a busy machine makes too few


def panels(path: Path) -> list[dict[str, Any]]:
    """Every panel of a dashboard, rows too."""
    return list(json.loads(path.read_text())["panels"])


def queries(path: Path) -> Iterator[tuple[str, str]]:
    """Each query with the title of its panel."""
    for panel in panels(path):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def filled(query: str, seconds: float, values: Mapping[str, str]) -> str:
    """A query as Grafana sends it; what `values` lacks stands at All. `seconds` is what Grafana takes rates over."""
    query = re.sub(r"\$__(rate_)?interval", f"{seconds * 1000:.0f}ms", query)
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ALL), query)


def without_data(path: Path, prometheus: Prometheus, **values: str) -> list[str]:
    """The queries that find nothing but NaN now, each with its panel's title."""
    seconds = SCRAPES_IN_A_RATE * prometheus.interval_seconds
    return [
        f"{title}: {query}"
        for title, query in queries(path)
        if not any(
            math.isfinite(float(series["value"][1])) for series in prometheus.find(filled(query, seconds, values))
        )
    ]
