"""The offset of a time, by a broker that gives the nearest message: those of 4.x do."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import StoredMessage, encode_message
from tests.client.peer import Peer, Reply, route_of
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.session.spark_access import ClientAccess  # noqa: E402
from rmqd.spark.session.spark_cluster import cluster_of  # noqa: E402

NEAREST, STORED_MS = 4, 1_795_000_000_000


@pytest.mark.parametrize(
    ("time_ms", "is_there", "offset"),
    [
        pytest.param(STORED_MS, True, NEAREST, id="the nearest is of that time"),
        pytest.param(STORED_MS - 9, True, NEAREST, id="the nearest is later"),
        pytest.param(STORED_MS + 9, True, NEAREST + 1, id="the nearest is the one before"),
        pytest.param(STORED_MS + 9, False, NEAREST, id="nothing is there"),
    ],
)
async def test_the_nearest_message_may_be_the_one_before(time_ms: int, is_there: bool, offset: int) -> None:
    """Then the next one is the first of that time: a read up to there has it, and one from there has not."""
    message = StoredMessage(topic="orders", queue_id=0, body=b"x", queue_offset=NEAREST, store_timestamp=STORED_MS)
    fields = PullMessageResponseHeader(NEAREST + 1, 0, NEAREST + 1).ext_fields()
    pulled = Reply(ResponseCode.SUCCESS, "", fields, encode_message(message))
    async with Peer() as name_server, Peer() as broker:
        name_server.on(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(body=route_of({"a": {0: broker.address}}, 1).to_json())
        )
        broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, Reply(ext_fields={"offset": str(NEAREST)}))
        broker.on(RequestCode.PULL_MESSAGE, pulled if is_there else Reply(ResponseCode.PULL_NOT_FOUND, "", fields))
        cluster = cluster_of(ClientAccess(ClientOptions(nameservers=(name_server.address,))))
        queue = MessageQueue("orders", "a", 0)
        assert (await asyncio.to_thread(cluster.offsets_at, {queue: time_ms})).found == {queue: offset}
