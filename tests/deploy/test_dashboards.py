"""deploy/grafana: checks of the dashboards without a running Grafana."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rmqd.daemon.metrics.exposition import METRIC_SPECS
from tests.deploy import RULES
from tests.deploy.dashboards import FILES, FOLDER, filled, panels, queries

LABELS = {name: {*spec.labels, "instance", "job", "le"} for name, spec in METRIC_SPECS.items()}
ENDINGS = ("_bucket", "_sum", "_count")
COLUMNS = 24


def each(check: Callable[[Path], None]) -> Callable[[], None]:
    """A test that checks every dashboard, and names each that fails."""

    def test() -> None:
        failed = {}
        for path in FILES:
            try:
                check(path)
            except AssertionError as error:
                failed[path.stem] = str(error)
        assert failed == {}

    test.__doc__ = check.__doc__
    return test


def family(name: str) -> str:
    return next((name.removesuffix(end) for end in ENDINGS if name.endswith(end) and name not in LABELS), name)


def document(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def variables(path: Path) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in document(path)["templating"]["list"]}


def test_there_are_three_dashboards_and_each_has_its_own_address() -> None:
    assert [path.stem for path in FILES] == ["rmqd-group", "rmqd-overview", "rmqd-spark"]
    assert [document(path)["uid"] for path in FILES] == [path.stem for path in FILES]
    assert all(document(path)["id"] is None for path in FILES)  # Grafana assigns the number


@each
def test_panels_do_not_overlap(path: Path) -> None:
    """Panels are also within Grafana's 24 columns."""
    found = panels(path)
    assert len({panel["id"] for panel in found}) == len(found)
    assert len({panel["title"] for panel in found}) == len(found)
    places = {panel["title"]: panel["gridPos"] for panel in found}
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS for place in places.values())
    assert [pair for pair in itertools.combinations(places, 2) if _overlap(*(places[title] for title in pair))] == []


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in (("x", "w"), ("y", "h"))
    )


@each
def test_every_panel_has_a_description_and_a_unit(path: Path) -> None:
    for panel in panels(path):
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


@each
def test_queries_use_metrics_and_labels_of_rmqd(path: Path) -> None:
    asked = [query for _, query in queries(path)]
    asked += [variable["definition"] for variable in variables(path).values() if variable["type"] == "query"]
    asked += [note["expr"] for note in document(path)["annotations"]["list"] if "expr" in note]
    for query in asked:
        names = {family(name) for name in re.findall(r"\brmqd_\w+", query)}
        assert names <= LABELS.keys(), query
        for name, selector in re.findall(r"\b(rmqd_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= LABELS[family(name)], query


@each
def test_the_data_source_is_a_variable_and_all_variables_are_known(path: Path) -> None:
    known = variables(path)
    assert known["datasource"]["type"] == "datasource"
    text = path.read_text()
    assert set(re.findall(r'"uid": "([^"]+)"', text)) == {"${datasource}", "-- Grafana --", path.stem}
    used = {name for query in queries(path) for name in re.findall(r"\$(\w+)", query[1])}
    assert {name for name in used if not name.startswith("__")} <= known.keys()
    assert "$" not in "".join(filled(query, 60, {}) for _, query in queries(path))


@each
def test_links_lead_to_the_other_dashboards_and_to_the_runbook(path: Path) -> None:
    links = document(path)["links"]
    tags = [tag for link in links for tag in link["tags"]]
    text = path.read_text()
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}

    assert set(tags) <= set(document(path)["tags"])
    assert [link["url"] for link in links if link["type"] == "link"] == ["${docs}/runbook.md"]
    assert (FOLDER.parents[2] / variables(path)["docs"]["query"] / "runbook.md").exists()
    assert set(re.findall(r'"/d/([\w-]+)', text)) <= {other.stem for other in FILES}
    assert set(re.findall(r"\bRmqd\w+", text)) <= alerts
