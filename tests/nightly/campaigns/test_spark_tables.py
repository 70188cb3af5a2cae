"""A short campaign of tables on the embedded broker, and wrong tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nightly.campaigns.tables_changes import CHANGES, copy_differences, source_of
from tests.nightly.campaigns.tables_moments import MOMENTS, NOTED
from tests.nightly.campaigns.tables_truth import body_of, differences, truth_of
from tests.rocketmq import RealCluster
from tests.rocketmq.release import EMBEDDED
from tests.rocketmq.spec import ClusterSpec
from tests.spark.needed import need

need("pyspark", "pyarrow", "psycopg")

from tests.nightly.campaigns.spark_tables import (  # noqa: E402
    ADDING,
    ALL,
    ALONE,
    DATABASE,
    FOLLOWING,
    KEEPING,
    Tables,
    TablesPlan,
    TablesResult,
)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("postgresql")  # skips without PostgreSQL
@pytest.mark.timeout(900)  # the start of a JVM, twice, on a machine that may be busy
def test_a_pipeline_killed_after_its_transaction_writes_each_batch_once(tmp_path: Path) -> None:
    """The table has the batch then, but the checkpoint does not: the repeated batch is skipped.

    Only this group shows duplicate rows, because the others have one row for each key.
    """
    plan = TablesPlan(seed=1, messages=400, kills=1, database_kills=0, batch=100, groups=(ADDING,), moments=(NOTED,))
    _open(tmp_path)
    with RealCluster.start(ClusterSpec(version=EMBEDDED), tmp_path / "cluster") as cluster:
        result = Tables(plan, cluster, tmp_path / "run").run()
    print(result.report())
    assert result.passed, result.report()
    assert result.bad


def _open(path: Path) -> None:
    """Let the database's user reach a temporary folder of pytest."""
    for folder in (path, *path.parents):
        if folder.owner() == path.owner() and folder.stat().st_mode & 0o011 != 0o011:
            folder.chmod(folder.stat().st_mode | 0o011)


PLAN = TablesPlan(seed=7, messages=400, kills=15, database_kills=3)
RESULT = TablesResult(
    plan=PLAN,
    killed=[str(kill) for kill in PLAN.all_kills()],
    rows={"changes": 400, "orders": 20, "copies": 15},
    bad=21,
    differences=[],
    stagings=3,
    lag={ADDING: 0, KEEPING: 0, FOLLOWING: 0},
    seconds=1.0,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"differences": [("twice", "m1")]},
        {"lag": {ADDING: 0, KEEPING: 1}},
        {"killed": RESULT.killed[:-1]},
        {"stagings": 4},
        {"problems": ["rmqd ended with 1"]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_result_fails_the_campaign(wrong: dict[str, object]) -> None:
    assert RESULT.passed
    assert not replace(RESULT, **wrong).passed  # type: ignore[arg-type]  # each is of its field's type


def test_each_group_is_killed_at_each_moment() -> None:
    """One of its kills hits the daemon alone, and one more hits the database."""
    for group in PLAN.groups:
        kills = [kill for kill in PLAN.all_kills() if kill.group == group]
        assert Counter(kill.who for kill in kills) == {ALL: 4, ALONE: 1, DATABASE: 1}
        assert sorted(kill.moment for kill in kills if kill.who != DATABASE) == sorted(MOMENTS)


def test_differences_from_the_truth_are_found() -> None:
    """They are missing, duplicate and wrong rows, and orders without their last change."""
    truth = truth_of(7, 400)
    assert len({body_of(7, int(key[1:]), 400)[:2] for key in truth.bad}) > 2
    good = [(key, *order, None) for key, order in truth.changes.items()]
    bad = [(key, None, None, None, None, "no JSON") for key in truth.bad]
    changes: list[tuple[object, ...]] = [(0, offset, *row) for offset, row in enumerate([*good, *bad, good[0]])]
    latest: list[tuple[object, ...]] = [*truth.latest.values()]

    def kinds(changes: list[tuple[object, ...]], latest: list[tuple[object, ...]]) -> list[str]:
        return [kind for kind, _ in differences(truth, {0: len(good) + len(bad) + 1}, changes, latest)]

    assert kinds(changes, latest) == []
    first, second, last_bad, last = changes[0], changes[1], changes[-2], latest[0]
    assert kinds(changes[1:], latest) == ["missing"]
    assert kinds([first, *changes[2:]], latest) == ["missing", "missing"]  # one for its offset, and one for its key
    assert kinds([*changes, first], latest) == ["twice"]
    assert kinds([first, (*second[:6], -1, None), *changes[2:]], latest) == ["wrong"]
    assert kinds([*changes[:-2], (*last_bad[:7], None), changes[-1]], latest) == ["wrong"]
    assert kinds(changes, [(*last[:3], -1), *latest[1:]]) == ["not the last"]
    assert kinds(changes, latest[1:]) == ["not the last"]


def test_applying_all_changes_results_in_the_source_table() -> None:
    """The pipeline's decoder reads the changes in the order of the log. All kinds of changes occur."""
    from rmqd_handlers.cdc.change_formats import BadChangeError
    from rmqd_handlers.cdc.columns import BadValueError
    from rmqd_handlers.cdc.pipeline import ChangeDecoder, Options

    source, decoder = source_of(7, 2000), ChangeDecoder(Options.model_validate(CHANGES))
    table: dict[int, tuple[object, ...]] = {}
    deleted: set[int] = set()
    kinds: Counter[str] = Counter()
    places: list[list[int]] = []
    for number, body in enumerate(source.bodies):
        try:
            changes = decoder.changes(body, number)
        except (BadChangeError, BadValueError):
            kinds["bad"] += 1
            continue
        kinds[", ".join("deleted" if change.is_deleted else "there" for change, _ in changes)] += 1
        for change, place in changes:
            key = change.row["id"]
            table.pop(key, None)
            deleted.add(key)
            if not change.is_deleted:
                table[key] = tuple(change.row.values())
                deleted.remove(key)
            places.append(place)
    assert places == sorted(places)
    assert table == source.rows
    assert deleted == set(source.deleted)
    assert kinds["bad"] == source.bad
    assert min(kinds[kind] for kind in ("", "there", "deleted", "deleted, there", "bad")) > 50


def test_differences_of_a_copy_from_its_source_are_found() -> None:
    """They are missing, surplus and outdated rows, and wrong deleted keys."""
    source = source_of(7, 2000)
    copy: list[tuple[object, ...]] = [(*row, [1, 2]) for row in source.rows.values()]
    deleted: list[tuple[object, ...]] = [(key,) for key in source.deleted]
    more, gone = min(source.deleted), next(iter(source.rows))
    assert list(copy_differences(source, copy, deleted)) == []
    for wrong, others in (
        (copy[1:], deleted),
        ([*copy, (more, None, "", 1, [1, 2])], deleted),
        ([(*copy[0][:3], -1, [1, 2]), *copy[1:]], deleted),
        (copy, deleted[1:]),
        (copy, [*deleted, (gone,)]),
    ):
        assert [kind for kind, _ in copy_differences(source, wrong, others)] == ["not as the source"]
