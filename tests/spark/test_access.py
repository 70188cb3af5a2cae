"""Keys and TLS in the options: what is refused, that secrets stay out of them, and a cluster that asks for both."""

from __future__ import annotations

import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.options import TlsOptions
from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.access import read_access
from rmqd.spark.sink.sink_options import parse_sink_options
from rmqd.spark.source.options import parse_options
from tests import certificates
from tests.rocketmq import offsets
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.settings import ACCESS_KEY, SECRET_KEY
from tests.spark.needed import need

need("pyspark", "pyarrow")

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.format import RocketMQSource  # noqa: E402
from rmqd.spark.sink.writer import Stored  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402

NEEDED = {"nameserver": "127.0.0.1:9876", "subscribe": "orders"}
CERTIFIED = {
    "tls": "true",
    "tlsCaFile": str(certificates.CA),
    "tlsCertFile": str(certificates.certificate(certificates.CLIENT)),
    "tlsKeyFile": str(certificates.key(certificates.CLIENT)),
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accessKey": "me", "secretKey": "open sesame"}, "secretKey: Spark shows options in plans and logs; accepted"),
        ({"accessKey": "me"}, "secretKey: is missing beside accessKey"),
        ({"secretKey": "${S}"}, "accessKey: is missing beside secretKey"),
        ({"securityToken": "${T}"}, "secretKey: is missing beside securityToken"),
        ({"tls": "yes"}, "tls: 'yes' is neither true nor false"),
        ({"tlsCaFile": "/ca.pem"}, "tlsCaFile: needs tls=true"),
        ({"tls": "true", "tlsCertFile": "/c.pem"}, "tlsKeyFile: is missing beside tlsCertFile"),
        ({"tls": "true", "tlsKeyPassword": "plain"}, "tlsKeyPassword: Spark shows"),
    ],
)
def test_what_is_wrong_is_told_by_source_and_sink(options: dict[str, str], said: str) -> None:
    """In a line that does not show a secret."""
    for parse in (parse_options, lambda values: parse_sink_options(values, {"body": "string"}, overwrite=False)):
        with pytest.raises(ConfigError) as raised:
            parse({**NEEDED, **options})
        problems = [str(problem) for problem in raised.value.problems]
        assert any(line.startswith(said) for line in problems), problems
        assert "sesame" not in str(raised.value)


def test_each_process_looks_secrets_up_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pickled has none, nor does what is shown."""
    (tmp_path / "secret").write_text("open sesame\n")
    given = {**NEEDED, "accessKey": "me", "secretKey": f"${{file:{tmp_path}/secret}}", "securityToken": "${TOKEN}"}
    access, problems = read_access(given)
    assert problems == []
    with pytest.raises(
        RmqdError, match=r"securityToken: the environment variable TOKEN is not set.*by this process of Spark"
    ):
        access.credentials()
    monkeypatch.setenv("TOKEN", "lent")
    credentials = access.credentials()
    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key, credentials.security_token) == ("me", "open sesame", "lent")
    assert not re.search(b"sesame|lent", pickle.dumps(access) + repr(access).encode() + repr(credentials).encode())


def test_tls_settings_are_those_of_the_configuration() -> None:
    """By their other names."""
    access, problems = read_access({**NEEDED, **CERTIFIED, "tlsVerify": "false", "tlsServerName": "mq"})
    assert problems == []
    assert access.client_options().tls == TlsOptions(
        enabled=True,
        ca_file=CERTIFIED["tlsCaFile"],
        cert_file=CERTIFIED["tlsCertFile"],
        key_file=CERTIFIED["tlsKeyFile"],
        verify=False,
        server_name="mq",
    )
    assert read_access(NEEDED)[0].client_options().tls == TlsOptions()


def test_a_cluster_that_asks_for_keys_and_certificates(
    rocketmq_secured: RealCluster, request: pytest.FixtureRequest, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written to, read from in both ways, and its group's offsets kept; and what is said with the wrong ones."""
    monkeypatch.setenv("RMQD_TEST_SECRET", SECRET_KEY)
    topic = rocketmq_secured.create_topic(fresh_name(request.node.name, "topic"), 2)
    reached = {"nameserver": rocketmq_secured.nameserver, "unavailableToleranceMs": "0", **CERTIFIED}
    options = {**reached, "accessKey": ACCESS_KEY, "secretKey": "${RMQD_TEST_SECRET}"}
    rows = pa.record_batch([[f"{number}" for number in range(500)]], ["body"])
    patient = {**options, "unavailableToleranceMs": "20000"}
    writer = RocketMQSource({**patient, "topic": topic}).writer(from_arrow_schema(rows.schema), overwrite=False)
    stored = writer.write(iter([rows]))
    assert isinstance(stored, Stored)
    assert stored.messages == 500
    assert sorted(map(int, read({**patient, "subscribe": topic}))) == list(range(500))
    streamed = Query(Checkpoint(), {**patient, "subscribe": topic, "groupId": group}).run_until_idle()
    assert sorted(map(int, itertools.chain(*streamed))) == list(range(500))
    assert sum(offsets.committed(rocketmq_secured, group, topic).values()) == 500

    source = {**options, "subscribe": topic}
    monkeypatch.setenv("RMQD_TEST_SECRET", "another one")
    with pytest.raises(RmqdError, match=r"client\.secret_key is not the one of this client\.access_key"):
        read(source)
    with pytest.raises(RmqdError, match=r"set client\.access_key and client\.secret_key"):
        read({**reached, "subscribe": topic})
    with pytest.raises(RmqdError, match="it takes nothing but TLS"):
        read({name: value for name, value in source.items() if not name.startswith("tls")})
    with pytest.raises(RmqdError, match="nobody vouches for the server's certificate"):
        read({**source, "tlsCaFile": str(certificates.OTHER_CA)})


def read(options: dict[str, str]) -> list[str]:
    """The bodies of the topic."""
    reader = RocketMQSource(options).reader(StructType())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]
