"""Keys and TLS in the options: refused values, and secrets that stay hidden."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.session.spark_access import ACCESS_OPTIONS, ClientAccess, GivenOptions, read_access
from rmqd.spark.sink.sink_rows import parse_sink_options
from rmqd.spark.source.source_options import parse_options
from tests.spark.needed import need

need("pyspark", "pyarrow")


NEEDED = {"nameserver": "127.0.0.1:9876", "subscribe": "orders"}


def access_of(values: dict[str, str]) -> ClientAccess:
    """Return the access that these valid options describe."""
    given = GivenOptions(values, (*ACCESS_OPTIONS, "subscribe"))
    access = read_access(given)
    assert given.problems == []
    return access


def test_source_and_sink_report_invalid_access_options() -> None:
    """The messages show no secrets."""
    cases: list[tuple[dict[str, str], str]] = [
        ({"accessKey": "me", "secretKey": "open sesame"}, "secretKey: Spark shows options in plans and logs; expected"),
        ({"accessKey": "me"}, "secretKey: missing; accessKey needs it"),
        ({"secretKey": "${S}"}, "accessKey: missing; secretKey needs it"),
        ({"securityToken": "${T}"}, "secretKey: missing; securityToken needs it"),
        ({"tls": "yes"}, "tls: 'yes' is not a valid truth value; expected true or false"),
        ({"tlsCaFile": "/ca.pem"}, "tlsCaFile: needs tls=true"),
        ({"tls": "true", "tlsCertFile": "/c.pem"}, "tlsKeyFile: missing; tlsCertFile needs it"),
        ({"tls": "true", "tlsKeyPassword": "plain"}, "tlsKeyPassword: Spark shows"),
    ]
    for options, said in cases:
        for parse in (parse_options, lambda values: parse_sink_options(values, {"body": "string"}, overwrite=False)):
            with pytest.raises(ConfigError) as raised:
                parse({**NEEDED, **options})
            problems = [str(problem) for problem in raised.value.problems]
            assert any(line.startswith(said) for line in problems), problems
            assert "sesame" not in str(raised.value)


def test_each_process_resolves_secrets_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither pickled access objects nor their repr contain secrets."""
    (tmp_path / "secret").write_text("open sesame\n")
    given = {**NEEDED, "accessKey": "me", "secretKey": f"${{file:{tmp_path}/secret}}", "securityToken": "${TOKEN}"}
    access = access_of(given)
    with pytest.raises(
        RmqdError, match=r"securityToken: the environment variable TOKEN is not set.*in this Spark process"
    ):
        access.credentials()
    monkeypatch.setenv("TOKEN", "lent")
    credentials = access.credentials()
    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key, credentials.security_token) == ("me", "open sesame", "lent")
    assert not re.search(b"sesame|lent", pickle.dumps(access) + repr(access).encode() + repr(credentials).encode())
