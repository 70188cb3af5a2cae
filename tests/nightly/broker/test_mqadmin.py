"""mqadmin on the embedded broker: each command prints the same as on a real one, except times, ids and figures."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.nightly.broker.embedded_cluster import embedded  # noqa: F401 - a fixture
from tests.rocketmq import RealCluster, ledger, release, rpc
from tests.rocketmq.admin_shell import ADMIN_FAILED, AdminShell
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.waiting import wait_until

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(240)]

CLUSTER = "DefaultCluster"
VOLATILE = (
    (r"\d[\d.]*@\d+#\d+", "CLIENT"),
    (r"\b\d+#\d+\b", "INSTANCE"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\d{4}-\d\d-\d\d[ #T]\d\d:\d\d:\d\d(?:[,:.]\d+)?", "TIME"),
    (r"\b20\d{12}\b", "TIME"),
    (r"\b1[6-9]\d{11}\b", "MILLIS"),
    (r"(?i)(commit ?log ?offset[=: ]+|physicOffset[\"=: ]+|ID@)\d+", r"\1PLACE"),
    (r"(TPS: )[\d.]+", r"\1RATE"),
    (r"\$\$Lambda\S+|@[0-9a-f]{5,8}\b", "HASH"),
    (r"(?m)^\tat .*\n", ""),
    (r"[ \t]+", " "),
    (r"(?m) +$", ""),
)


@dataclass(slots=True)
class Script:
    """The same commands on one cluster. `printed` has the output of each command, by the test's name for it."""

    shell: AdminShell
    cluster: RealCluster
    topic: str
    group: str
    directory: Path
    printed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run all commands, and restore the cluster."""
        self.topics()
        self.settings()
        self.messages()
        self.groups()
        self.offsets()
        self.deletions()

    def do(self, name: str, command: str, *arguments: str) -> str:
        """Run one command. It may fail."""
        printed = self.shell.mqadmin(self.cluster.nameserver, command, *arguments, check=False)
        self.printed[name] = printed
        return printed

    def topics(self) -> None:
        topic, broker = self.topic, self.cluster.broker.address
        self.do("updateTopic", "updateTopic", "-c", CLUSTER, "-t", topic, "-r", "4", "-w", "4")
        self.do("updateTopic of a broker", "updateTopic", "-b", broker, "-t", f"{topic}_2", "-a", "+message.type=FIFO")
        topics = self.directory / "topics.json"
        topics.write_text(json.dumps([{"topicName": f"{topic}_3", "readQueueNums": 1, "writeQueueNums": 1}]))
        self.do("updateTopicList", "updateTopicList", "-c", CLUSTER, "-f", str(topics))
        self.do("topicRoute of the list", "topicRoute", "-t", f"{topic}_3")
        self.do("updateTopic refused", "updateTopic", "-b", broker, "-t", "TBW102")
        self.do("updateTopic with a bad attribute", "updateTopic", "-b", broker, "-t", topic, "-a", "+message.type=X")
        self.do("topicList", "topicList")
        self.do("topicList -c", "topicList", "-c")
        self.do("topicRoute", "topicRoute", "-t", topic)
        self.do("topicRoute -l", "topicRoute", "-t", topic, "-l")
        self.do("topicRoute of none", "topicRoute", "-t", f"{topic}_none")
        self.do("topicClusterList", "topicClusterList", "-t", topic)
        self.do("topicStatus", "topicStatus", "-t", topic)
        self.do("topicStatus of none", "topicStatus", "-t", f"{topic}_none")
        self.do("updateTopicPerm", "updateTopicPerm", "-c", CLUSTER, "-t", topic, "-p", "4")
        self.do("updateTopicPerm of a broker", "updateTopicPerm", "-b", broker, "-t", topic, "-p", "6")
        self.do("allocateMQ", "allocateMQ", "-t", topic, "-i", "10.0.0.1,10.0.0.2")

    def settings(self) -> None:
        topic, broker = self.topic, self.cluster.broker.address
        self.do("clusterList", "clusterList")
        self.do("clusterList -m", "clusterList", "-m")
        self.do("brokerStatus", "brokerStatus", "-b", broker)
        self.do("getBrokerConfig", "getBrokerConfig", "-b", broker)
        self.do("updateBrokerConfig", "updateBrokerConfig", "-b", broker, "-k", "maxMessageSize", "-v", "4194304")
        self.do("updateBrokerConfig of none", "updateBrokerConfig", "-b", broker, "-k", "noSetting", "-v", "1")
        for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
            self.do(command, command, "-b", broker)
        self.do("getNamesrvConfig", "getNamesrvConfig")
        self.do("updateNamesrvConfig", "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        self.do("updateOrderConf", "updateOrderConf", "-m", "put", "-t", topic, "-v", "broker-a:4")
        self.do("updateOrderConf get", "updateOrderConf", "-m", "get", "-t", topic)
        self.do("topicRoute in order", "topicRoute", "-t", topic)
        self.do("updateOrderConf delete", "updateOrderConf", "-m", "delete", "-t", topic)
        self.do("updateOrderConf get none", "updateOrderConf", "-m", "get", "-t", topic)
        self.do("updateNamesrvConfig back", "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
        self.do("updateKvConfig", "updateKvConfig", "-s", "rmqd_test", "-k", "key", "-v", "value")
        self.do("deleteKvConfig", "deleteKvConfig", "-s", "rmqd_test", "-k", "key")

    def messages(self) -> None:
        topic, broker = self.topic, self.cluster.broker.address
        for number in range(3):
            place = ("-b", "broker-a", "-i", str(number % 2))
            sent = self.do(
                "sendMessage", "sendMessage", "-t", topic, "-p", "body", "-k", f"k{number}", "-c", "A", *place
            )
        self.do("queryMsgByUniqueKey", "queryMsgByUniqueKey", "-t", topic, "-i", sent.split()[-1])
        self.do("queryMsgByKey", "queryMsgByKey", "-t", topic, "-k", "k1")
        self.do("queryMsgByKey of none", "queryMsgByKey", "-t", topic, "-k", "none")
        found = self.do("queryMsgByOffset", "queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "1")
        offset_id = re.findall(r"OffsetID:\s*([0-9A-F]{32})", found) or ["not found"]
        self.do("queryMsgById", "queryMsgById", "-t", topic, "-i", offset_id[0])
        self.do("queryMsgByOffset of none", "queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "9")
        self.do("queryCq", "queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "2", "-b", broker)
        self.do("printMsg", "printMsg", "-t", topic, "-d", "true")
        self.do(
            "printMsgByQueue", "printMsgByQueue", "-t", topic, "-a", "broker-a", "-i", "1", "-p", "true", "-d", "true"
        )
        self.do("consumeMessage", "consumeMessage", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "0", "-c", "2")
        self.do("checkMsgSendRT", "checkMsgSendRT", "-t", f"{topic}_2", "-a", "2", "-s", "8")
        self.do("sendMsgStatus", "sendMsgStatus", "-b", "broker-a", "-c", "2")
        self.do("topicStatus with messages", "topicStatus", "-t", topic)

    def groups(self) -> None:
        topic, group, broker = self.topic, self.group, self.cluster.broker.address
        self.do("updateSubGroup", "updateSubGroup", "-c", CLUSTER, "-g", group, "-r", "3", "-q", "1")
        self.do("getConsumerConfig", "getConsumerConfig", "-g", group)
        mode = ("-b", broker, "-t", topic, "-g", group, "-q", "0", "-m")
        self.do("setConsumeMode", "setConsumeMode", *mode, "POP")  # ignored by clients that allocate queues themselves
        self.do("consumerConnection of none", "consumerConnection", "-g", group)
        self.do("producerConnection of none", "producerConnection", "-g", group, "-t", topic)
        handled = self.directory / "handled"
        with start_consumer(PeerOptions(self.cluster.nameserver, topic, handled), group) as consumer:
            tail = ledger.Tail()
            wait_until(lambda: tail.finished([handled]) == {"k0", "k1", "k2"}, "all is handled", 40)
            self.do("consumerConnection", "consumerConnection", "-g", group)
            for name, options in (
                ("producerConnection", ("-g", "CLIENT_INNER_PRODUCER", "-t", topic)),
                ("producer", ("-b", broker)),
            ):
                # a producer of an earlier command may still be listed: its heartbeat can arrive after it unregistered
                lines = self.do(name, name, *options).splitlines()
                own = [line for line in lines if consumer.client_id in line]
                assert own, lines
                self.printed[name] = "\n".join(re.sub(r"^\d{4} ", "", line) for line in own)
            self.do("consumerStatus", "consumerStatus", "-g", group)
            self.do("consumerStatus of a client", "consumerStatus", "-g", group, "-i", consumer.client_id)
            self.do("topicList -c with the group", "topicList", "-c")
            consumer.stop()
        for queue, offset in ((0, 2), (1, 1)):  # Java's last commit may be lost with its connection
            place = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
            rpc.call(broker, rpc.UPDATE_CONSUMER_OFFSET, place)
        self.do("consumerProgress", "consumerProgress", "-g", group)
        self.do("consumerProgress of a topic", "consumerProgress", "-g", group, "-t", topic)
        self.do("consumerProgress of all", "consumerProgress")
        self.do("brokerConsumeStats", "brokerConsumeStats", "-b", broker, "-l", "-9")
        self.do("statsAll", "statsAll", "-t", topic)

    def offsets(self) -> None:
        topic, group, broker = self.topic, self.group, self.cluster.broker.address
        group_and_topic = ("-g", group, "-t", topic)
        self.do("resetOffsetByTime", "resetOffsetByTime", *group_and_topic, "-s", "0")
        self.do("consumerProgress at the start", "consumerProgress", "-g", group)
        self.do("resetOffsetByTime to now", "resetOffsetByTime", *group_and_topic, "-s", "now")
        one = ("-b", broker, "-q", "0", "-o", "1", "-s", "0")
        self.do("resetOffsetByTime of a queue", "resetOffsetByTime", *group_and_topic, *one)
        self.do("consumerProgress of one more", "consumerProgress", "-g", group)
        self.do("skipAccumulatedMessage", "skipAccumulatedMessage", *group_and_topic)
        self.do("consumerProgress at the end", "consumerProgress", "-g", group)
        self.do("updateSubGroup for a clone", "updateSubGroup", "-c", CLUSTER, "-g", f"{group}_2")
        self.do("cloneGroupOffset", "cloneGroupOffset", "-s", group, "-d", f"{group}_2", "-t", topic)
        self.do("consumerProgress of the clone", "consumerProgress", "-g", f"{group}_2", "-t", topic)
        self.do("resetOffsetByTime of no group", "resetOffsetByTime", "-g", f"{group}_none", "-t", topic, "-s", "0")

    def deletions(self) -> None:
        topic, group = self.topic, self.group
        self.do("deleteSubGroup", "deleteSubGroup", "-c", CLUSTER, "-g", group, "-r", "true")
        self.do("deleteSubGroup of the clone", "deleteSubGroup", "-c", CLUSTER, "-g", f"{group}_2", "-r", "true")
        self.do("deleteTopic", "deleteTopic", "-c", CLUSTER, "-t", topic)
        for number in (2, 3):
            self.do(f"deleteTopic {number}", "deleteTopic", "-c", CLUSTER, "-t", f"{topic}_{number}")
        self.do("topicRoute of a deleted one", "topicRoute", "-t", topic)
        self.do("topicList at the end", "topicList")


CLUSTER = "DefaultCluster"


NAMES_ONLY = {"brokerStatus": ":", "getBrokerConfig": "=", "getNamesrvConfig": "="}
"""Commands that print one setting or figure per line, and the end of its name. The embedded broker may have fewer."""
OWN_SETTINGS = {"maxStoreSize"}
"""The embedded broker has this setting in place of file sizes."""
FIGURES = ["clusterList", "clusterList -m", "sendMsgStatus", "checkMsgSendRT", "statsAll", "consumerStatus of a client"]
"""Commands whose numbers depend on the machine or on earlier tests."""
OF_THE_WHOLE_CLUSTER = [
    *("topicList", "topicList -c", "topicList -c with the group", "topicList at the end"),
    *("consumerProgress of all", "brokerConsumeStats"),
]
"""Commands that also print topics and groups of other tests, in an order that depends on them."""
REFUSED = {
    *("updateTopic refused", "updateTopic with a bad attribute", "topicRoute of none", "topicStatus of none"),
    *("updateOrderConf get none", "queryMsgByKey of none"),
    *("consumerConnection of none", "producerConnection of none", "resetOffsetByTime of no group"),
    *("topicRoute of a deleted one",),
}


@pytest.mark.skipif(release.wanted() != release.DEFAULT, reason=f"mqadmin is compared on RocketMQ {release.DEFAULT}")
def test_commands_print_the_same_as_on_a_real_broker(
    embedded: RealCluster,  # noqa: F811
    rocketmq: RealCluster,
    tmp_path: Path,
) -> None:
    topic, group = fresh_name("mqadmin", "topic"), fresh_name("mqadmin", "group")
    printed = []
    with AdminShell(tmp_path) as shell:
        for name, cluster in (("embedded", embedded), ("real", rocketmq)):
            directory = tmp_path / name
            directory.mkdir()
            script = Script(shell, cluster, topic, group, directory)
            script.run()
            printed.append(script.printed)
    ours, theirs = printed

    names = (topic, group)
    assert {name for name, text in ours.items() if ADMIN_FAILED.match(text)} == REFUSED
    differing = [
        name for name in theirs if _comparable(name, ours[name], names) != _comparable(name, theirs[name], names)
    ]
    differing = [name for name in differing if not _has_fewer(name, ours[name], theirs[name])]
    assert not differing, "\n".join(f"{name}: embedded\n{ours[name]}\nreal\n{theirs[name]}" for name in differing)


def _comparable(name: str, text: str, names: Sequence[str]) -> list[str]:
    """Return the lines without the volatile parts."""
    for pattern, instead in VOLATILE:
        text = re.sub(pattern, instead, text)
    if name in FIGURES:
        text = re.sub(r"\d+(?:\.\d+)?", "0", text)
    lines = text.strip().splitlines()
    if name in OF_THE_WHOLE_CLUSTER:
        lines = sorted(line for line in lines if line.startswith("#") or any(one in line for one in names))
    return lines


def _has_fewer(name: str, ours: str, theirs: str) -> bool:
    """Return whether a command that prints settings or figures prints only names that a real broker has too."""
    if name not in NAMES_ONLY:
        return False
    named = [
        {line.partition(NAMES_ONLY[name])[0].strip() for line in text.splitlines() if NAMES_ONLY[name] in line}
        for text in (ours, theirs)
    ]
    return named[0] - OWN_SETTINGS <= named[1]
