"""URLs of databases, as options of handlers."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql

OTHERS = {"table": "orders", "columns": {"id": "msg_id"}}


def told_of(options: type[BaseModel], url: str) -> str:
    """The text of the error about a refused URL."""
    with pytest.raises(ValidationError) as refused:
        options.model_validate({**OTHERS, "url": url})
    (told,) = (error["msg"] for error in refused.value.errors() if error["loc"] == ("url",))
    return str(told)


def test_an_unescaped_at_sign_in_the_password_is_refused() -> None:
    for options in (PostgreSql.Options, Sql.Options):
        told = told_of(options, "postgresql://me:p@ss@db/shop")
        assert "expected %40 for an @ in the user or the password" in told
        assert "p@ss" not in told
        for url in ("postgresql://me:p%40ss@db/shop?application_name=a@b@c", "host=db user=a@b@c"):
            options.model_validate({**OTHERS, "url": url})


def test_a_url_that_libpq_cannot_read_is_refused_without_its_password() -> None:
    """libpq's own error, at the start, would contain the password."""
    for url in (
        "postgresql+psycopg://me:secret@db/shop",
        "postgresql+psycopg://me:secret@db/shop?sslmode=require",
        "me:secret@db/shop",
        "host=db password=my secret",
        "postgresql://me:secret@db/shop?ssl=on",
        "postgresql://me:secret%zz@db/shop",
    ):
        told = told_of(PostgreSql.Options, url)
        assert "expected postgresql://user:password@host:5432/database, or host=" in told
        assert "secret" not in told
