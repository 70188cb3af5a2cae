"""The source's options, and the errors for wrong ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rmqd.errors import ConfigError
from rmqd.spark.source.source_columns import names_of_schema


def test_a_schema_of_the_reader_may_have_the_columns_of_the_source() -> None:
    """All its problems are reported."""
    assert names_of_schema([("body", "binary"), ("properties", "map<string,string>")]) == ("body", "properties")
    with pytest.raises(ConfigError) as raised:
        names_of_schema(
            [("bdoy", "binary"), ("body", "string"), ("x1", "int"), ("topic", "string"), ("topic", "string")]
        )
    first, second, third, *doubled = map(str, raised.value.problems)
    assert first == "schema: unknown column bdoy; did you mean body?"
    assert second == "schema: body is string; expected binary; cast the column after reading it"
    assert third.startswith("schema: unknown column x1; expected one of topic, broker")
    assert doubled == ["schema: topic occurs more than once"] * 2


@pytest.mark.process
def test_modules_for_options_import_neither_pyspark_nor_pyarrow() -> None:
    """`rmqd check` may check a group's options without Spark."""
    code = (
        "import sys\n"
        "from rmqd.spark.session import queue_range\n"
        "from rmqd.spark.source import source_offsets, source_options, source_progress\n"
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
