"""ClusterId: a cluster keeps its id if its addresses change, and clusters with the same names have different ids."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import NameServerError
from tests.client.peer import Reply
from tests.client.routing.test_cluster_id import KeyServer, learned, servers

__all__ = ["servers"]


async def test_without_kv_config_the_cluster_name_is_the_id_and_is_logged(servers: list[KeyServer]) -> None:
    """A command that only reads creates no id. If no name server responds, an error is raised."""
    ours, second, _ = servers
    assert await learned(ours, may_write=False) == "DefaultCluster"
    assert not ours.table
    for answer in (Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), None):  # proxies also drop unknown requests
        second.peer.on(RequestCode.GET_KV_CONFIG, answer)
        with capture_logs() as lines:
            assert await learned(second) == "DefaultCluster"
        assert [line["event"] for line in lines] == ["cluster.without_id"]
    await ours.peer.down()
    with pytest.raises(NameServerError):
        await learned(ours)
