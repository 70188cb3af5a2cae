"""Installed hooks in a real daemon: every worker calls them, for each group that uses them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

pytestmark = pytest.mark.rocketmq

CODE = """
import json, os

class Auditing:
    def __init__(self):
        self.file = open(os.environ["AUDIT_FILE"], "a", buffering=1)

    def after_batch(self, batch, context):
        line = {"pid": os.getpid(), "group": context.group, "client_id": context.client_id,
                "queue": context.message_queue.queue_id, "keys": [m.keys for m in batch], "outcome": context.outcome}
        self.file.write(json.dumps(line) + "\\n")
        if batch[0].keys.endswith("7"):
            raise ValueError("the hook's own fault")

    def wants(self, message, context):
        return not message.keys.startswith("load")
"""


@behaviour(
    "hooks",
    "A hook is for one group, or for several",
    java="it is registered with each consumer",
    rmqd="it is installed once; the key `hooks` of a group names its hooks, all by default",
    checked="three groups of a daemon, one of them without hooks: the messages that each handled, and the calls",
)
def test_hooks_are_called_for_each_batch_in_each_worker_and_skip_messages(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, audit = tmp_path / "site", tmp_path / "audit"
    info = site / "shop_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "shop_hooks.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rmqd.hooks]\nauditing = shop_hooks:Auditing\n")
    monkeypatch.setenv("AUDIT_FILE", str(audit))
    other, without = fresh_name("hooks_other", "group"), fresh_name("hooks_none", "group")
    groups = {
        group: ledger_group(topic, tmp_path / "ledger", "a", consume_from_where="first_offset"),
        other: ledger_group(
            topic, tmp_path / "other", "b", handler_options={"fail_every": 50}, consume_from_where="first_offset"
        ),
        without: ledger_group(topic, tmp_path / "without", "c", consume_from_where="first_offset", hooks="none"),
    }
    rmqd = RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, groups, "--workers", "2")
    rmqd.import_from.append(site)
    wanted = {f"m{number}" for number in range(1, 400, 2)}
    with rmqd:
        rmqd.wait_ready()
        wait_until(lambda: all_share(rmqd), "both workers have queues of both groups", 40)
        with Producer(rocketmq.broker.address, topic) as producer:
            for number in range(400):
                producer.send(key=f"m{number}" if number % 2 else f"load{number}")
        wait_until(lambda: handled(tmp_path / "ledger").keys() == wanted, "what the hook wants is handled", 40)
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "skipped messages are no lag")
        left_out = rmqd.metric("rmqd_hook_left_out_messages_total", group=group, hook="auditing")
        failures = rmqd.metric("rmqd_hook_failures_total", group=group, hook="auditing")
        wait_until(lambda: len(handled(tmp_path / "other")) > 150, "the other group handles messages")
        wait_until(lambda: len(handled(tmp_path / "without")) == 400, "a group without hooks leaves nothing out", 40)
        assert rmqd.terminate()[0] == 0
    notes = [json.loads(line) for line in audit.read_text().splitlines()]
    ours = [note for note in notes if note["group"] == group]
    assert Counter(key for note in ours for key in note["keys"]) == dict.fromkeys(wanted, 1)
    assert {note["outcome"] for note in ours} == {"success"}
    assert len({(note["pid"], note["client_id"]) for note in ours}) == 2
    assert {note["group"] for note in notes} == {group, other}
    assert {note["outcome"] for note in notes if note["group"] == other} == {"success", "failed"}
    assert (left_out, failures) == (200, sum(key.endswith("7") for key in wanted))


def all_share(rmqd: RmqdProcess) -> bool:
    """Whether each worker has queues of each group's topic."""
    groups = rmqd.status()["groups"]
    return [{queue["worker"] for queue in group["queues"] if not queue["is_retry"]} for group in groups] == [{1, 2}] * 3


def handled(path: Path) -> Counter[str]:
    """How often each key was handled to the end."""
    return (
        Counter(entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH)
        if path.exists()
        else Counter()
    )
