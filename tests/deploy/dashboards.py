"""The shipped dashboards as Grafana shows them: panels, and queries with values for their variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent.parent.parent / "deploy" / "grafana" / "dashboards"
FILES: Final = tuple(sorted(FOLDER.glob("*.json")))
ALL: Final = ".*"


def panels(path: Path) -> list[dict[str, Any]]:
    """Every panel of a dashboard, rows too."""
    return list(json.loads(path.read_text())["panels"])


def queries(path: Path) -> Iterator[tuple[str, str]]:
    """Each query with the title of its panel."""
    for panel in panels(path):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def filled(query: str, seconds: float, values: Mapping[str, str]) -> str:
    """A query as Grafana sends it. A variable without a value is All. `seconds` is the interval of rates."""
    query = re.sub(r"\$__(rate_)?interval", f"{seconds * 1000:.0f}ms", query)
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ALL), query)
