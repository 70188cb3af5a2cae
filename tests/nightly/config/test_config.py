"""Timestamps, and the token of the HTTP endpoint.

The core of these tests is in tests/config/test_config.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.errors import ConfigError
from rmqd.plugins.model_options import options_of_group
from tests.config.configuration import GROUP, load


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [("'@1767196800000'", 1_767_196_800_000), ("2026-01-01T00:00:00Z", 1_767_225_600_000)],
)
def test_a_point_in_time_is_iso_8601_or_milliseconds(written: str, milliseconds: int) -> None:
    text = f"{GROUP}    consume_from_where: timestamp\n    consume_timestamp: {written}\n"
    assert options_of_group(load(text).groups["mailer"], "mailer", "").consume_timestamp_ms == milliseconds


def test_the_default_timestamp_is_half_an_hour_ago_as_in_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    group = load(f"{GROUP}    consume_from_where: timestamp\n").groups["mailer"]
    assert options_of_group(group, "mailer", "").consume_timestamp_ms == 1_799_998_200_000


def test_the_token_may_be_in_a_file() -> None:
    Path("token").write_text("from a file\n")
    assert load("nameserver: a:1\nhttp: {token_file: token}").http.read_token() == "from a file"
    assert load("nameserver: a:1\nhttp: {token: here}").http.read_token() == "here"
    config = load("nameserver: a:1\nhttp: {token_file: token}")
    Path("token").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):  # an empty token would protect nothing
        config.http.read_token()
    with pytest.raises(ConfigError, match=r"2:20: http\.token_file: the file token is empty"):
        load("nameserver: a:1\nhttp: {token_file: token}")
