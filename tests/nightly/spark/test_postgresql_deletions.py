"""The sink `postgresql` with `delete_column`, over a real PostgreSQL: deletions by key, in order, each batch once."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.config.model.spark_model import SinkConfig
from rmqd.errors import ConfigError, RmqdError
from tests.spark.needed import need

need("pyspark", "pyarrow", "psycopg")

import psycopg  # noqa: E402
import structlog.testing  # noqa: E402

from rmqd.spark.pipelines.postgresql.order_kinds import OrderColumn, OrderColumns  # noqa: E402
from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink  # noqa: E402
from rmqd.spark.pipelines.postgresql.upsert_statements import UpsertStatements  # noqa: E402
from tests.spark.test_postgresql_sink import Database, batch, prices_database  # noqa: E402, F401  a fixture
from tests.waiting import wait_until  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "id bigint, part string, amount int, place array<bigint>, gone boolean"
TABLE = "CREATE TABLE prices (id bigint, part text, amount int, place bigint[], PRIMARY KEY (id, part))"
KEPT = "SELECT id, part, place FROM rmqd_deleted_prices ORDER BY id, part"

Row = tuple[int, str, int | None, list[int] | None, bool | None]


def rows(spark: SparkSession, *values: Row) -> DataFrame:
    return spark.createDataFrame(list(values), ROWS)


def ready(spark: SparkSession, database: Database, **keys: Any) -> PostgresqlSink:
    options = {"keys": ["id", "part"], "order_by": ["place"], "delete_column": "gone", **keys}
    return database.sink(rows(spark).schema, **options)


def there(database: Database) -> list[tuple[Any, ...]]:
    return database.run("SELECT id, part, amount FROM prices ORDER BY id, part")


def test_a_deletion_removes_the_row_of_its_key(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """The row is in the same batch or in an earlier one. A row that is later than the deletion stays, or returns."""
    prices_database.run(TABLE)
    sink = ready(spark, prices_database)
    sink.write(
        rows(spark, (1, "a", 10, [5], None), (1, "b", 20, [5], False),
             (2, "a", 5, [1], False), (2, "a", None, [2], True)),
        batch(0),
    )  # fmt: skip
    assert there(prices_database) == [(1, "a", 10), (1, "b", 20)]
    sink.write(rows(spark, (1, "a", None, [6], True), (1, "b", None, [4], True)), batch(1))
    assert there(prices_database) == [(1, "b", 20)]
    assert prices_database.run(KEPT) == [(1, "a", [6]), (2, "a", [2])]
    sink.write(rows(spark, (1, "a", 11, [7], False)), batch(2))
    assert there(prices_database) == [(1, "a", 11), (1, "b", 20)]
    assert prices_database.run(KEPT) == [(2, "a", [2])]


def test_an_older_change_restores_no_deleted_row(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """The deletion may come before any row, or from another group. Only the latest deletion is kept."""
    prices_database.run(TABLE)
    sink = ready(spark, prices_database)
    sink.write(rows(spark, (1, "a", None, [2, 9], True), (2, "a", None, [2, 9], True)), batch(0))
    sink.write(rows(spark, (1, "a", 10, [2, 8], False), (2, "a", None, [1, 99], True)), batch(1))
    assert there(prices_database) == []
    assert prices_database.run(KEPT) == [(1, "a", [2, 9]), (2, "a", [2, 9])]
    other = ready(spark, prices_database)
    other.write(rows(spark, (1, "a", 10, [2, 8], False), (2, "a", 20, [2, 10], False)), batch(0, query="another"))
    assert there(prices_database) == [(2, "a", 20)]


def test_an_older_change_waits_for_a_deletion(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """Another group has not committed the deletion yet."""
    prices_database.run(TABLE)
    prices_database.run("INSERT INTO prices VALUES (1, 'a', 10, '{5}')")
    sink = ready(spark, prices_database)
    frame = rows(spark, (1, "a", 11, [7], False)).persist()
    frame.count()
    other = UpsertStatements("other", "public", "prices", tuple(frame.columns), ("id", "part"), ("place",), "gone")
    prices_database.run(other.create_staging_sql(1))
    prices_database.run(f"INSERT INTO {other.staging_table(1)} VALUES ('x', 1, 'a', NULL, '{{10}}', true)")
    with psycopg.connect(prices_database.url, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute(other.move_rows_sql(1), (["x"],))
        writing = threading.Thread(target=sink.write, args=(frame, batch(0)))
        writing.start()
        wait_until(
            lambda: prices_database.run(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ),
            "the other group waits",
        )
        connection.commit()
        writing.join()
    assert there(prices_database) == []
    assert prices_database.run(KEPT) == [(1, "a", [10])]


def test_a_null_order_value_is_before_all_others(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """The batch does not matter. The same is true for rows and for deletions."""
    prices_database.run(TABLE)
    sink = ready(spark, prices_database, order_by=["place", "amount"])
    sink.write(rows(spark, (1, "a", 10, [5], False), (2, "a", 1, [5], True), (3, "a", 10, None, False)), batch(0))
    sink.write(rows(spark, (1, "a", 11, None, True), (2, "a", 11, None, False), (3, "a", 11, [1], False)), batch(1))
    sink.write(rows(spark, (1, "a", None, [5], False), (3, "a", None, [1], True)), batch(2))
    assert there(prices_database) == [(1, "a", 10), (3, "a", 11)]


def test_the_table_equals_the_truth_for_any_order_of_batches(
    spark: SparkSession,
    prices_database: Database,  # noqa: F811
) -> None:
    """The changes are of few keys. Batches are shuffled and repeated, as after resets."""
    prices_database.run(TABLE)
    chance = random.Random(20260301)
    changes: list[Row] = [
        (chance.randrange(12), chance.choice("ab"), number, [number // 10, number % 10], chance.random() < 0.4)
        for number in range(300)
    ]
    truth = {(row[0], row[1]): row for row in changes}
    wanted = [(*key, row[2]) for key, row in sorted(truth.items()) if not row[4]]
    assert 0 < len(wanted) < len(truth)
    sink = ready(spark, prices_database)
    parts: list[Sequence[Row]] = [changes[start : start + 30] for start in range(0, 300, 30)]
    order = [*range(10), *range(10)]
    chance.shuffle(order)
    for number, part in enumerate(order):
        sink.write(rows(spark, *parts[part]), batch(number))
    assert there(prices_database) == wanted


def test_a_batch_of_deletions_is_written_once(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """A repeat does not delete a row that was inserted by hand since, with the same order value."""
    prices_database.run(TABLE)
    frame = rows(spark, (1, "a", None, [5], True))
    sink = ready(spark, prices_database)
    sink.write(frame, batch(0))
    prices_database.run("INSERT INTO prices VALUES (1, 'a', 7, '{5}')")
    sink.write(frame, batch(0))
    assert there(prices_database) == [(1, "a", 7)]


REFUSED = {
    "no column": ({"delete_column": "absent"}, "delete_column: unknown column absent; expected one of id, part"),
    "no boolean": ({"delete_column": "amount"}, "delete_column: amount is int in the pipeline; expected boolean"),
}


@pytest.mark.parametrize(("keys", "message"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_column_for_deletions_is_refused(
    spark: SparkSession,
    prices_database: Database,  # noqa: F811
    keys: dict[str, Any],
    message: str,
) -> None:
    prices_database.run(TABLE)
    with pytest.raises(ConfigError, match=message):
        ready(spark, prices_database, **keys)


def test_another_order_of_deletions_is_refused(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """They could not be compared. For a missing table, the suggested one has no column for deletions."""
    with pytest.raises(RmqdError, match=r"CREATE TABLE prices \(.*\"amount\" integer, \"place\" bigint\[\]\)$"):
        ready(spark, prices_database)
    prices_database.run(TABLE)
    ready(spark, prices_database)
    with pytest.raises(ConfigError, match=r"rmqd_deleted_prices\", which keeps deleted keys, has no column amount"):
        ready(spark, prices_database, order_by=["amount"])


def by(spark: SparkSession, kind: str, *values: Row) -> DataFrame:
    """Rows of a pipeline that declares the kind of order in `place`."""
    return rows(spark, *values).withMetadata("place", {"rmqd.order": kind})


def writer(database: Database, frame: DataFrame, name: str, *topics: str) -> PostgresqlSink:
    """The sink of another group, of these topics, ready for rows."""
    keys = {"keys": ["id", "part"], "order_by": ["place"], "delete_column": "gone"}
    config = {"format": "postgresql", "url": database.url, "table": "prices", **keys}
    made = PostgresqlSink(SinkConfig.model_validate(config), {}, name, topics)
    made.prepare(frame.schema)
    return made


def test_rows_with_another_kind_of_order_are_refused(
    spark: SparkSession,
    prices_database: Database,  # noqa: F811
) -> None:
    """Any group is refused as long as a row or a deletion has a value of the former order."""
    prices_database.run(TABLE)
    prices_database.run("INSERT INTO prices VALUES (9, 'by hand', 1, NULL)")
    offsets = by(spark, "offsets", (1, "a", 10, [5], False), (2, "a", None, [6], True))
    times = by(spark, "times", (1, "a", 11, [177], False))
    writer(prices_database, times, "early")  # writes nothing, so the next group may have another order
    first = writer(prices_database, offsets, "first")
    first.write(offsets, batch(0))
    refused = "ordered by place as 'offsets', but this group's rows as 'times'.*TRUNCATE "
    tables = [r'"public"."prices"', r'"public"."rmqd_deleted_prices"']
    with pytest.raises(ConfigError, match=f"{refused}{', '.join(tables)}, and reset"):
        writer(prices_database, times, "second")
    writer(prices_database, offsets, "second").write(offsets, batch(0))
    prices_database.run("DELETE FROM prices WHERE id < 9")
    with pytest.raises(ConfigError, match=f"{refused}{tables[1]}, and reset"):
        writer(prices_database, times, "first")
    prices_database.run("TRUNCATE rmqd_deleted_prices")
    later = writer(prices_database, times, "third")
    with pytest.raises(RmqdError, match="another group now orders its rows by place as 'times', and this group"):
        first.write(offsets, batch(1))
    later.write(times, batch(0))
    assert there(prices_database) == [(1, "a", 11), (9, "by hand", 1)]
    writer(prices_database, rows(spark), "untold").write(rows(spark, (3, "a", 1, [1], False)), batch(0))


def test_a_group_without_deletions_may_order_by_another_column(
    spark: SparkSession,
    prices_database: Database,  # noqa: F811
) -> None:
    """Kept deletions count only if they have the column."""
    prices_database.run(TABLE)
    ready(spark, prices_database).write(rows(spark, (1, "a", None, [5], True)), batch(0))
    frame = rows(spark).drop("gone")
    for kind in ("grams", "ounces"):
        told = frame.withMetadata("amount", {"rmqd.order": kind})
        prices_database.sink(told.schema, keys=["id", "part"], order_by=["amount"])
    for kind in ("offsets", "times"):
        told = frame.withMetadata("place", {"rmqd.order": kind})
        if kind == "times":
            with pytest.raises(ConfigError, match=r"TRUNCATE \"public\"\.\"rmqd_deleted_prices\""):
                prices_database.sink(told.schema, keys=["id", "part"], order_by=["place"])
        else:
            prices_database.sink(told.schema, keys=["id", "part"], order_by=["place"])


def test_offsets_of_other_topics_are_refused(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """The error has statements for this case. Once they are executed, any new change counts as later."""
    prices_database.run(TABLE)
    frame = by(spark, "offset in {topics}", (1, "a", 10, [5], False), (2, "a", None, [6], True))
    writer(prices_database, frame, "first", "b", "a").write(frame, batch(0))
    with pytest.raises(
        ConfigError, match=r"by place as 'offset in a, b', but this group's rows as 'offset in c'"
    ) as refused:
        writer(prices_database, frame, "second", "c")
    statements = re.findall(
        r"(?:UPDATE|TRUNCATE) \S+\.\"(?:rmqd_deleted_)?prices\"(?: SET \"place\" = NULL)?(?=;)", str(refused.value)
    )
    assert len(statements) == 2
    with pytest.raises(ConfigError, match="but this group's rows as 'offset in a, c'"):  # c may replace b
        writer(prices_database, frame, "first", "a", "c")
    for statement in statements:
        prices_database.run(statement)
    young = by(spark, "offset in {topics}", (1, "a", 11, [0], False), (2, "a", 20, [1], False))
    writer(prices_database, young, "second", "c").write(young, batch(0))
    assert there(prices_database) == [(1, "a", 11), (2, "a", 20)]


def noted(database: Database) -> list[tuple[Any, ...]]:
    return database.run("SELECT target, column_name, kind FROM rmqd_order_kinds")


def test_groups_may_add_topics_to_the_record(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """Groups with more topics or with fewer are accepted, and running groups continue."""
    prices_database.run(TABLE)
    frame = by(spark, "offset in {topics}", (1, "a", 10, [5], False))
    first = writer(prices_database, frame, "first", "b")
    first.write(frame, batch(0))
    more = writer(prices_database, frame, "second", "c", "b", "a")
    more.write(frame, batch(0))
    first.write(frame, batch(1))
    writer(prices_database, frame, "first", "b").write(frame, batch(2))
    more.write(frame, batch(1))
    writer(prices_database, frame, "third", "a", "c").write(frame, batch(0))
    assert noted(prices_database) == [("prices", "place", "offset in a, b, c")]


def join(error: Exception) -> str:
    """Return the statement in the error that adds topics to the recorded ones."""
    found = re.search(r"UPDATE \S+rmqd_order_kinds\S* SET .*? AND kind = '[^']*'(?=;|$)", str(error))
    assert found is not None, error
    return found[0]


@pytest.mark.parametrize("is_filled", [True, False], ids=["with rows", "empty"])
def test_groups_with_different_shards_write_to_one_table(
    spark: SparkSession,
    prices_database: Database,  # noqa: F811
    is_filled: bool,
) -> None:
    """The error names the statement for this. In an empty table the former group gets the error, and then continues."""
    prices_database.run(TABLE)
    frame = by(spark, "offset in {topics}", (1, "a", 10, [5], False))
    other = by(spark, "offset in {topics}", (2, "a", 20, [1], False))
    first = writer(prices_database, frame, "first", "one")
    if is_filled:
        first.write(frame, batch(0))
        with pytest.raises(ConfigError) as refused:
            writer(prices_database, other, "second", "two")
        prices_database.run(join(refused.value))
        second = writer(prices_database, other, "second", "two")
    else:
        second = writer(prices_database, other, "second", "two")
        with pytest.raises(RmqdError, match="another group now orders") as ended:
            first.write(frame, batch(0))
        prices_database.run(join(ended.value))
    second.write(other, batch(0))
    first.write(frame, batch(1))
    writer(prices_database, frame, "first", "one").write(frame, batch(2))
    assert there(prices_database) == [(1, "a", 10), (2, "a", 20)]
    assert noted(prices_database) == [("prices", "place", "offset in one, two")]
    with pytest.raises(
        ConfigError, match="as 'offset in one, two', but this group's rows as 'offset in three'"
    ) as third:
        writer(prices_database, other, "third", "three")
    with pytest.raises(ConfigError) as fourth:
        writer(prices_database, other, "fourth", "four")
    for error in (third, fourth):  # the second statement names an outdated record, and changes nothing
        prices_database.run(join(error.value))
    assert noted(prices_database) == [("prices", "place", "offset in one, three, two")]


def test_older_rows_that_are_left_out_are_logged(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    """A recreated topic has such rows. The log counts keys, including deletions; an equal value is not older."""
    prices_database.run(TABLE)
    sink = ready(spark, prices_database)
    with structlog.testing.capture_logs() as logs:
        first = rows(spark, (1, "a", 1, [5], False), (2, "a", 2, [5], False), (3, "a", 3, [5], True))
        sink.write(first, batch(0))
        sink.write(first, batch(1))
        sink.write(
            rows(spark, (1, "a", 9, [0], False), (1, "a", 9, [1], False), (2, "a", 9, [1], True),
                 (3, "a", 9, [1], False), (4, "a", 9, [1], False)),
            batch(2),
        )  # fmt: skip
    (told,) = (entry for entry in logs if entry["event"] == "spark.older_rows_left_out")
    assert (told["log_level"], told["batch"], told["keys"]) == ("warning", 2, 3)
    assert there(prices_database) == [(1, "a", 1), (2, "a", 2), (4, "a", 9)]


def test_the_order_cannot_change_during_a_batch(
    spark: SparkSession,
    prices_database: Database,  # noqa: F811
) -> None:
    """A group with another order waits for the batch, and finds its rows."""
    prices_database.run(TABLE)
    offsets = by(spark, "offsets", (1, "a", 10, [5], False))
    writer(prices_database, offsets, "first")
    refused: list[str] = []

    def start() -> None:
        try:
            writer(prices_database, by(spark, "times"), "second")
        except ConfigError as error:
            refused.append(str(error))

    kinds = OrderColumns(
        UpsertStatements("first", "public", "prices", (), order_by=("place",)), {"place": OrderColumn("offsets")}
    )
    with psycopg.connect(prices_database.url, cursor_factory=psycopg.RawCursor) as connection:
        kinds.lock_record(connection)
        starting = threading.Thread(target=start)
        starting.start()
        wait_until(
            lambda: prices_database.run(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ),
            "the other group waits",
        )
        connection.execute("INSERT INTO prices VALUES (1, 'a', 10, '{5}')")
        connection.commit()
        starting.join()
    assert len(refused) == 1


def test_deletions_of_a_long_table_name_are_kept(spark: SparkSession, prices_database: Database) -> None:  # noqa: F811
    name = "p" * 60
    prices_database.run(TABLE.replace("prices", name))
    ready(spark, prices_database, table=name).write(rows(spark, (1, "a", None, [5], True)), batch(0))
    ((kept,),) = prices_database.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'rmqd_deleted%'")
    assert prices_database.run(f"SELECT id FROM {kept}") == [(1,)]
