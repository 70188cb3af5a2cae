"""Database URLs as handler options."""

from __future__ import annotations

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql
from tests.handlers.test_urls import OTHERS


def test_a_url_that_sqlalchemy_parses_correctly_is_accepted() -> None:
    """A URL with an @ in the user, a URL without a host, and a connection string."""
    for url in ("mysql+pymysql://loader@shop:secret@db/shop", "sqlite:////tmp/a@b@c", "host=db password=a@b@c"):
        Sql.Options.model_validate({**OTHERS, "url": url})


def test_a_libpq_connection_string_may_contain_url_delimiters() -> None:
    PostgreSql.Options.model_validate({**OTHERS, "url": "host=db user=me password=a://x@y@z"})
