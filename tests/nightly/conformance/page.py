"""docs/proof/conformance.md, written from the tests' declarations and their results on each version of RocketMQ.

`python -m tests.nightly.conformance.page` writes the page again without running a test.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conformance.declaration import AREAS, Behaviour, declared_by
from tests.nightly.comparison.differences import ACCEPTED
from tests.rocketmq import release

TOP = Path(__file__).parents[3]
PAGE = TOP / "docs" / "proof" / "conformance.md"
RESULTS = Path(__file__).with_name("results.json")
HOLDS, FAILED, SKIPPED = "holds", "failed", "skipped"
OLDER = "4.9.7"
HEAD = f"""\
# Conformance

The behaviour of the official Java push consumer and of rmqd, and the test that checks it. `make conformance` writes
this page; each row is declared at its test, so do not edit it here. The last three columns are results:

- **{release.DEFAULT}**: a real RocketMQ {release.DEFAULT}, if possible next to the Java consumer or mqadmin.
- **Embedded**: the same tests on the embedded broker, with its differences (`make conformance
  VERSION={release.EMBEDDED}`).
- **Differs on {OLDER}**: differences on a real RocketMQ {OLDER} (`make conformance VERSION={OLDER}`).
"""
LAST_COLUMNS = (release.DEFAULT, "Embedded", f"Differs on {OLDER}")
COLUMNS = ("Behaviour", "Java", "rmqd", "How it was checked", *LAST_COLUMNS)

DIFFERENCES = """
## Where the embedded broker answers otherwise

One script of requests goes to a real broker and to the embedded broker. The responses are compared field by field:
codes, remarks, header fields, bodies, and the records in them. `tests/nightly/comparison/rules.py` lists the fields
that are not compared, such as times, ids and addresses. Only these differences are allowed. The run fails if there is a
new difference, or if one of these is missing.

"""

Results = dict[str, dict[str, str]]
"""By version, then by the behaviour's sentence: `holds`, `failed`, or `skipped: reason`."""
Declared = dict[Behaviour, list[str]]
"""Each behaviour with the tests that declare it, as pytest names them without parameters."""


def declared() -> Declared:
    """Return every declaration, in an order that does not change when a test moves to tests/nightly.

    Raises ValueError if two behaviours have one sentence.
    """
    found: Declared = {}
    for path in sorted((TOP / "tests").rglob("test_*.py"), key=lambda path: path.as_posix().replace("/nightly/", "/")):
        if "behaviour(" not in path.read_text():
            continue
        name = path.relative_to(TOP)
        module = importlib.import_module(".".join(name.with_suffix("").parts))
        for test, function in vars(module).items():
            for one in declared_by(getattr(function, "pytestmark", [])) if test.startswith("test_") else ():
                found.setdefault(one, []).append(f"{name}::{test}")
    titles: set[str] = set()
    for one in found:
        if one.title in titles:
            raise ValueError(
                f"two behaviours are called {one.title!r}: share one declaration, or give each its own sentence"
            )
        titles.add(one.title)
    return found


def load() -> Results:
    """Read the results of earlier runs."""
    results: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def record(version: str, outcomes: Mapping[str, str]) -> None:
    """Store the results of a run, delete results without a declaration, and write the page."""
    found, results = declared(), load()
    titles = {one.title for one in found}
    known = {**results.get(version, {}), **outcomes}
    results[version] = {title: known[title] for title in sorted(known) if title in titles}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    PAGE.write_text(render(found, results))


def render(found: Declared, results: Results) -> str:
    """Return the text of the page."""
    return HEAD + "".join(_section(area, found, results) for area in AREAS) + DIFFERENCES + _accepted()


def _section(area: str, found: Declared, results: Results) -> str:
    rows = [_row(one, tests, results) for one, tests in found.items() if one.area == area]
    if not rows:
        return ""
    head = [f"\n## {AREAS[area]}\n", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
    return "\n".join([*head, *map(_line, rows)]) + "\n"


def _accepted() -> str:
    rows = ([one.what, f"`{one.path}`" + (f", if {one.where}" if one.where else ""), one.why] for one in ACCEPTED)
    return "\n".join(map(_line, [["Request", "Part of the response", "Why"], ["---"] * 3, *rows])) + "\n"


def _row(one: Behaviour, tests: list[str], results: Results) -> Iterator[str]:
    yield from (one.title, one.java, one.rmqd)
    yield f"{one.checked}: " + ", ".join(f"`{name.rpartition('::')[2]}`" for name in tests)
    yield results.get(release.DEFAULT, {}).get(one.title, "not run")
    embedded = results.get(release.EMBEDDED, {}).get(one.title, "not run")
    yield f"{HOLDS}; {one.embedded}" if embedded == HOLDS and one.embedded else _reason(embedded)
    older = results.get(OLDER, {}).get(one.title, "not run")
    yield (one.differs or "no") if older == HOLDS else _reason(older)


def _reason(result: str) -> str:
    return result.removeprefix(f"{SKIPPED}: ")


def _line(cells: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(render(declared(), load()))
