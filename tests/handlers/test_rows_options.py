"""`postgresql` and `sql`: options that do not fit each other are refused, and a password is not shown."""

from __future__ import annotations

from typing import Final

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql
from tests.handlers.options import refused_otherwise
from tests.handlers.sql_orders import COLUMNS

URLS: Final[dict[type[PostgreSql | Sql], str]] = {
    PostgreSql: "postgresql://app:geheim@db/shop",
    Sql: "postgresql+psycopg://app:geheim@db/shop",
}


def test_wrong_options_are_refused() -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"mode": "upsert"}, "needs a key"),
        ({"mode": "merge"}, "'insert'"),
        ({"key": ["colour"]}, "names colour, which is not in columns"),
        ({"version": "cents"}, "version needs mode: upsert"),
        ({"columns": {"id": "id"}}, "'id' is not a valid expression; expected a JSON path"),
        ({"columns": {"id": "$.items["}}, "is not a valid expression"),
        ({"columns": {}}, "at least 1|a table needs columns"),
        ({"table": "a.b.c"}, "pattern"),
        ({"max_connections": 0}, "greater than or equal to 1"),
        ({"tabel": "orders"}, "Extra inputs"),
    ]
    for handler, url in URLS.items():
        assert refused_otherwise(handler.Options, wrong, url=url, table="orders", columns=COLUMNS) == []


def test_a_statement_and_a_table_exclude_each_other() -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"table": None}, "expected a table with columns, or a statement"),
        ({"statement": "DELETE FROM a"}, "expected a table with columns, or a statement"),
        ({"table": None, "statement": "DELETE FROM a"}, "need a table"),
    ]
    assert refused_otherwise(Sql.Options, wrong, url=URLS[Sql], table="orders", columns=COLUMNS) == []


def test_the_password_is_not_shown() -> None:
    for handler, url in URLS.items():
        options = handler.Options.model_validate({"url": url, "table": "orders", "columns": COLUMNS})
        assert "geheim" not in repr(options)
