"""A Kafka of one node, which is broker and controller in one JVM. Its jars are fetched once, to `~/.cache/rmqd`."""

from __future__ import annotations

import base64
import itertools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.rocketmq.errors import RocketMqUnavailable
from tests.rocketmq.fetch import find_java
from tests.rocketmq.fetch import home as rocketmq_home
from tests.servers.jars import copy_jars
from tests.servers.process import ServerMissing, ServerProcess, free_port
from tests.waiting import Patience

VERSION: Final = "3.9.2"
POM: Final = Path(__file__).with_name("kafka.xml")
QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""What a JVM starts with soonest."""
ANSWER_SECONDS: Final = 2.0
READ_SECONDS: Final = 60.0
MOCK_PARTITIONS: Final = 4  # librdkafka's default

SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
# a broker that was killed is let in again once its old session is over, 9 s otherwise
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""
_numbers = itertools.count(1)


def kafka_jars() -> list[Path]:
    """The broker's jars. The first call fetches them (40 MB). Raises ServerMissing."""
    return copy_jars(POM, rocketmq_home().parent / f"kafka-{VERSION}", f"Kafka {VERSION}")


def read_records(address: str, topic: str, read: Mapping[int, int] | None = None) -> list[Message]:
    """The topic's records, one partition after the other; `read` has the start offsets by partition."""
    begin = read or {}
    consumer = Consumer({"bootstrap.servers": address, "group.id": "tests", "log_level": 0})
    try:
        listed = consumer.list_topics(topic, READ_SECONDS).topics[topic]
        places = [TopicPartition(topic, number, begin.get(number, 0)) for number in sorted(listed.partitions)]
        ends = [consumer.get_watermark_offsets(place, READ_SECONDS)[1] for place in places]
        wanted = sum(end - place.offset for place, end in zip(places, ends, strict=True))
        consumer.assign(places)
        found: dict[int, list[Message]] = {place.partition: [] for place in places}
        patience = Patience(READ_SECONDS)
        while sum(map(len, found.values())) < wanted:
            assert not patience.is_over(), f"the end of {topic} is not reached"
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                found[message.partition() or 0].append(message)
    finally:
        consumer.close()
    return [message for number in sorted(found) for message in found[number]]


class MockKafka:
    """The mock broker of librdkafka, in this process. It creates each requested topic with 4 partitions."""

    def __init__(self) -> None:
        self._owner = AdminClient({"test.mock.num.brokers": 1, "log_level": 0})
        [broker] = self._owner.list_topics(timeout=READ_SECONDS).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def create_topic(self, partitions: int = MOCK_PARTITIONS) -> str:
        """The name of a new topic."""
        assert partitions == MOCK_PARTITIONS, partitions
        return f"topic-{next(_numbers)}"

    def records(self, topic: str) -> list[Message]:
        """All records of a topic, one partition after the other."""
        return read_records(self.address, topic)


class KafkaServer(ServerProcess):
    """Creates requested topics. Acknowledged records survive a kill, because the kernel has them."""

    ready_seconds = 120.0  # a JVM on a busy machine

    def __init__(
        self, *, partitions: int = 4, heap: str = "320m", jvm: Sequence[str] = QUICK, settings: str = ""
    ) -> None:
        """`settings` are further lines of its configuration. Raises ServerMissing."""
        try:
            self._java = find_java()
        except RocketMqUnavailable as error:
            raise ServerMissing(str(error)) from None
        self._jars = kafka_jars()
        self._jvm = [f"-Xmx{heap}", f"-Xms{heap}", *jvm, "-Djava.net.preferIPv4Stack=true"]
        super().__init__("kafka", users=())
        self._settings = self.directory / "server.properties"
        self._settings.write_text(
            SETTINGS.format(
                broker=self.port, controller=free_port(), data=self.directory / "data", partitions=partitions
            )
            + settings
        )

    @property
    def address(self) -> str:
        """The bootstrap address for clients."""
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.run([*self._program("kafka.tools.StorageTool"), "format", f"--cluster-id={cluster}", "-c", self._settings])

    def command(self) -> Sequence[str | Path]:
        return [*self._program("kafka.Kafka"), self._settings]

    def is_ready(self) -> bool:
        try:
            self.admin().list_topics(timeout=ANSWER_SECONDS)
        except KafkaException:
            return False
        return True

    def admin(self) -> AdminClient:
        """A client that creates and lists topics."""
        # its connections fail until the broker listens; log lines about that would not help
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create_topic(self, partitions: int = 1, **config: str) -> str:
        """Create a topic; its settings have underscores in place of dots. Returns its name."""
        name = f"topic-{next(_numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()  # it must outlive its futures
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(READ_SECONDS)
        return name

    def records(self, topic: str, read: Mapping[int, int] | None = None) -> list[Message]:
        """The topic's records, one partition after the other; `read` has the start offsets by partition."""
        return read_records(self.address, topic, read)

    def _program(self, main_class: str) -> list[str]:
        return [self._java, *self._jvm, "-cp", ":".join(map(str, self._jars)), main_class]
