"""URLs of databases, as options of handlers."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql

OTHERS = {"table": "orders", "columns": {"id": "msg_id"}}


@pytest.mark.parametrize("options", [PostgreSql.Options, Sql.Options])
def test_a_password_that_would_be_part_of_the_host_is_told(options: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as refused:
        options.model_validate({**OTHERS, "url": "postgresql://me:p@ss@db/shop"})
    (told,) = (error["msg"] for error in refused.value.errors() if error["loc"] == ("url",))
    assert "accepted: %40 for an @ in the user or the password" in told
    assert "p@ss" not in told
    for url in ("postgresql://me:p%40ss@db/shop?application_name=a@b@c", "sqlite:////tmp/a@b@c", "host=db user=a@b@c"):
        options.model_validate({**OTHERS, "url": url})
