"""New code for a running orderly group under load: `rmqd restart`, and a canary that is promoted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess
from tests.rocketmq import RealCluster, ledger
from tests.waiting import wait_until

CODE = """
from tests.integration.ledger_handler import LedgerHandler
class Handler(LedgerHandler):
    def __init__(self, options: LedgerHandler.Options) -> None:
        super().__init__(options.model_copy(update={{"member": options.member or "{version}"}}))
"""


@pytest.mark.process
def test_new_code_takes_over_without_loss_or_repetition(rocketmq: RealCluster, topic: str, tmp_path: Path) -> None:
    """The order is kept too. tests/nightly/campaigns/releases.py does this 20 times, also for concurrent groups."""
    rocketmq.create_topic(topic, 2)
    path, code = tmp_path / "ledger", tmp_path / "new_code.py"
    code.write_text(CODE.format(version="first"))
    options = {"path": str(path), "member": "", "seconds": 0.01}
    canary = {"plugin": "new_code:Handler", "options": {**options, "member": "canary"}, "share": "0%"}
    group = {
        "subscriptions": {topic: "*"},
        "consume_from_where": "first_offset",
        "consume_mode": "orderly",
        "consume_message_batch_max_size": 4,
        "handler": {"plugin": "new_code:Handler", "options": options, "canary": canary},
    }
    rmqd = RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {topic: group})
    rmqd.import_from.append(tmp_path)

    def handled_by(member: str) -> bool:
        return any(one.member == member for one in ledger.read(path))

    with rmqd, Load(rocketmq, topic, 10**6, per_second=100, queues=2) as load:
        wait_until(lambda: handled_by("first"), "the first code handles messages")
        code.write_text("import no_such_module")
        with pytest.raises(HTTPError, match="500"):
            rmqd.post(f"/api/v1/groups/{topic}/restart")
        code.write_text(CODE.format(version="new"))
        assert rmqd.post(f"/api/v1/groups/{topic}/restart")["restarted"] == [topic]
        wait_until(lambda: handled_by("new"), "the new code handles messages")
        assert rmqd.post(f"/api/v1/groups/{topic}/canary?share=50%25")["updated"] == [topic]
        wait_until(lambda: handled_by("canary"), "the canary handles messages")
        wait_until(
            lambda: rmqd.metric("rmqd_messages_handled_total", variant="canary", result="acked") > 0, "its count"
        )
        assert rmqd.post(f"/api/v1/groups/{topic}/canary")["restarted"] == [topic]
        load.stop.set()
        load.thread.join()
        tail = ledger.Tail()
        wait_until(lambda: tail.finished([path]) >= load.sent.keys(), "everything is handled")
        assert rmqd.terminate()[0] == 0, rmqd.tail()
    entries = ledger.read(path)
    assert sorted(one.key for one in entries if one.event == ledger.START) == sorted(load.sent)
    for queue in range(2):
        assert all(a <= b for a, b in pairwise(one.offset for one in entries if one.queue == queue))
