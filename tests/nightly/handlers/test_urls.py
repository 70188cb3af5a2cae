"""URLs of databases, as options of handlers."""

from __future__ import annotations

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql
from tests.handlers.test_urls import OTHERS


def test_a_url_that_sqlalchemy_reads_rightly_is_accepted() -> None:
    """An @ in the user, no host, and no URL at all."""
    for url in ("mysql+pymysql://loader@shop:secret@db/shop", "sqlite:////tmp/a@b@c", "host=db password=a@b@c"):
        Sql.Options.model_validate({**OTHERS, "url": url})


def test_a_connection_string_of_libpq_may_have_what_a_url_may_not() -> None:
    PostgreSql.Options.model_validate({**OTHERS, "url": "host=db user=me password=a://x@y@z"})
