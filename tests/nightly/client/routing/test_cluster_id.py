"""ClusterId: one cluster keeps its id, whatever its addresses, and two clusters of the same names never share one."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import NameServerError
from tests.client.peer import Reply
from tests.client.routing.test_cluster_id import KeyServer, learned, servers

__all__ = ["servers"]


async def test_without_keys_the_name_counts_and_one_line_says_so(servers: list[KeyServer]) -> None:
    """A command that only reads gives no id, either. Without an answer nothing is decided."""
    ours, second, _ = servers
    assert await learned(ours, may_write=False) == "DefaultCluster"
    assert not ours.table
    for answer in (Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), None):  # proxies also drop what they do not know
        second.peer.on(RequestCode.GET_KV_CONFIG, answer)
        with capture_logs() as lines:
            assert await learned(second) == "DefaultCluster"
        assert [line["event"] for line in lines] == ["cluster.without_id"]
    await ours.peer.down()
    with pytest.raises(NameServerError):
        await learned(ours)
