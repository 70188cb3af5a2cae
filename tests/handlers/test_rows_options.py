"""`postgresql` and `sql`: options that do not fit each other are refused, and a password is not shown."""

from __future__ import annotations

from typing import Final

import pytest
from pydantic import ValidationError

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql
from tests.handlers.sql_orders import COLUMNS

URLS: Final = {PostgreSql: "postgresql://app:geheim@db/shop", Sql: "postgresql+psycopg://app:geheim@db/shop"}
BOTH: Final = pytest.mark.parametrize("handler", URLS, ids=lambda handler: handler.__name__)


def options_of(handler: type[PostgreSql | Sql], **options: object) -> PostgreSql.Options | Sql.Options:
    return handler.Options.model_validate({"url": URLS[handler], "table": "orders", "columns": COLUMNS, **options})


@BOTH
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "upsert"}, "needs a key"),
        ({"mode": "merge"}, "'insert'"),
        ({"key": ["colour"]}, "not written: colour"),
        ({"version": "cents"}, "upsert alone"),
        ({"columns": {"id": "id"}}, "'id' names no value; accepted: a JSON path"),
        ({"columns": {"id": "$.items["}}, "names no value"),
        ({"columns": {}}, "at least 1|a table needs columns"),
        ({"table": "a.b.c"}, "pattern"),
        ({"max_connections": 0}, "greater than or equal to 1"),
        ({"tabel": "orders"}, "Extra inputs"),
    ],
)
def test_wrong_options_are_refused(handler: type[PostgreSql | Sql], options: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        options_of(handler, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": None}, "give a table with its columns, or a statement"),
        ({"statement": "DELETE FROM a"}, "give a table with its columns, or a statement"),
        ({"table": None, "statement": "DELETE FROM a"}, "are for a table"),
    ],
)
def test_a_statement_stands_in_place_of_a_table(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        options_of(Sql, **options)


@BOTH
def test_the_password_is_not_shown(handler: type[PostgreSql | Sql]) -> None:
    assert "geheim" not in repr(options_of(handler))
