"""The queries of the shipped dashboards' panels, run on a real Prometheus."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from tests.deploy.dashboards import filled, queries
from tests.nightly.deploy.prometheus_process import Prometheus

SCRAPES_IN_A_RATE: Final = 8  # Grafana takes four, which one late scrape on a busy machine makes too few


def without_data(path: Path, prometheus: Prometheus, **values: str) -> list[str]:
    """The queries that return no number now, each with its panel's title."""
    seconds = SCRAPES_IN_A_RATE * prometheus.interval_seconds
    return [
        f"{title}: {query}"
        for title, query in queries(path)
        if not any(
            math.isfinite(float(series["value"][1])) for series in prometheus.find(filled(query, seconds, values))
        )
    ]
