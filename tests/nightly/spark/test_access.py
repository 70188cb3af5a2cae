"""Keys and TLS in the options, and a cluster that requires both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rmqd.client.client_options import TlsOptions
from rmqd.errors import RmqdError
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

from rmqd.spark.sink.sink_writer import StoredRowCount  # noqa: E402
from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402
from tests.spark.test_access import (  # noqa: E402
    NEEDED,
    access_of,
)

CERTIFIED = {
    "tls": "true",
    "tlsCaFile": str(certificates.CA),
    "tlsCertFile": str(certificates.certificate(certificates.CLIENT)),
    "tlsKeyFile": str(certificates.key(certificates.CLIENT)),
}


def test_tls_options_become_tls_settings_of_the_configuration() -> None:
    access = access_of({**NEEDED, **CERTIFIED, "tlsVerify": "false", "tlsServerName": "mq"})
    assert access.client_options().tls == TlsOptions(
        enabled=True,
        ca_file=CERTIFIED["tlsCaFile"],
        cert_file=CERTIFIED["tlsCertFile"],
        key_file=CERTIFIED["tlsKeyFile"],
        verify=False,
        server_name="mq",
    )
    assert access_of(NEEDED).client_options().tls == TlsOptions()


def test_a_cluster_that_requires_keys_and_certificates(
    rocketmq_secured: RealCluster, request: pytest.FixtureRequest, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes, both kinds of reads and commits of the group's offsets work. Wrong keys and certificates are reported."""
    monkeypatch.setenv("RMQD_TEST_SECRET", SECRET_KEY)
    topic = rocketmq_secured.create_topic(fresh_name(request.node.name, "topic"), 2)
    reached = {"nameserver": rocketmq_secured.nameserver, "unavailableToleranceMs": "0", **CERTIFIED}
    options = {**reached, "accessKey": ACCESS_KEY, "secretKey": "${RMQD_TEST_SECRET}"}
    rows = pa.record_batch([[f"{number}" for number in range(500)]], ["body"])
    patient = {**options, "unavailableToleranceMs": "20000"}
    writer = RocketMQSource({**patient, "topic": topic}).writer(from_arrow_schema(rows.schema), overwrite=False)
    stored = writer.write(iter([rows]))
    assert isinstance(stored, StoredRowCount)
    assert stored.messages == 500
    assert sorted(map(int, read({**patient, "subscribe": topic}))) == list(range(500))
    streamed = Query(Checkpoint(), {**patient, "subscribe": topic, "groupId": group}).run_until_idle()
    assert sorted(map(int, itertools.chain(*streamed))) == list(range(500))
    assert sum(offsets.committed(rocketmq_secured, group, topic).values()) == 500

    source = {**options, "subscribe": topic}
    monkeypatch.setenv("RMQD_TEST_SECRET", "another one")
    with pytest.raises(RmqdError, match=r"client\.secret_key does not match client\.access_key"):
        read(source)
    with pytest.raises(RmqdError, match=r"set client\.access_key and client\.secret_key"):
        read({**reached, "subscribe": topic})
    with pytest.raises(RmqdError, match="the server accepts only TLS"):
        read({name: value for name, value in source.items() if not name.startswith("tls")})
    with pytest.raises(RmqdError, match="no trusted authority signed the server's certificate"):
        read({**source, "tlsCaFile": str(certificates.OTHER_CA)})


def read(options: dict[str, str]) -> list[str]:
    """Return the bodies of the topic."""
    reader = RocketMQSource(options).reader(StructType())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]
