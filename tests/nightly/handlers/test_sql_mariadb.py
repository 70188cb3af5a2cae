"""`sql`: the daily tests on MariaDB."""

from __future__ import annotations

import pytest

from tests.handlers.test_sql import (
    in_group,
    test_a_key_that_comes_again_adds_no_row,
    test_a_message_alone_that_was_handled_is_told_so_that_it_is_counted,
    test_a_row_is_not_replaced_by_an_older_version,
    test_columns_get_what_their_expressions_name,
    test_what_is_refused_leaves_no_mark,
    test_without_a_key_a_message_that_comes_again_is_written_again_unless_it_is_marked,
)
from tests.handlers.test_sql_refused import (
    test_a_key_that_is_there_is_told_without_its_value,
    test_a_table_that_is_gone_fails_the_batch,
    test_what_a_trigger_refuses_is_a_dead_letter_and_the_rest_is_written,
    test_what_can_never_be_a_row_is_a_dead_letter_and_the_rest_is_written,
    test_what_does_not_fit_the_database_fails_the_start,
)
from tests.servers.mariadb import MariadbServer
from tests.servers.shops import Shop, on_mariadb

pytestmark = pytest.mark.process

__all__ = [
    "in_group",
    "test_a_key_that_comes_again_adds_no_row",
    "test_a_key_that_is_there_is_told_without_its_value",
    "test_a_message_alone_that_was_handled_is_told_so_that_it_is_counted",
    "test_a_row_is_not_replaced_by_an_older_version",
    "test_a_table_that_is_gone_fails_the_batch",
    "test_columns_get_what_their_expressions_name",
    "test_what_a_trigger_refuses_is_a_dead_letter_and_the_rest_is_written",
    "test_what_can_never_be_a_row_is_a_dead_letter_and_the_rest_is_written",
    "test_what_does_not_fit_the_database_fails_the_start",
    "test_what_is_refused_leaves_no_mark",
    "test_without_a_key_a_message_that_comes_again_is_written_again_unless_it_is_marked",
]


@pytest.fixture
def shop(mariadb: MariadbServer) -> Shop:
    """The database of each test."""
    return on_mariadb(mariadb)
