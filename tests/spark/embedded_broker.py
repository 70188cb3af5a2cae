"""An embedded broker in a separate thread, which can lose data, stop, and start again at the same addresses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from rmqd.broker.embedded_rocketmq import VIP_DISTANCE, EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.api.group_requests import send_heartbeat, unregister_client
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage, select_by_id
from rmqd.testing.rocketmq import BackgroundLoop
from rmqd.testing.test_group import JumpingClock
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.bodies.heartbeat_data import ConsumerData, HeartbeatData
from rmqd.wire.message_queue import MessageQueue

T = TypeVar("T")

BROKER = "broker-a"
CONSUMER = "10.0.0.9@1"
SECONDS = 30.0
HOUR_SECONDS = 3600.0


def hold_ports(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Reserve a port for a name server and one for a broker, with its VIP port, until the stack ends.

    Each is bound by a socket that does not listen: connections are refused, and no other process gets the port. A
    server may still listen on it, because both sockets reuse addresses.
    """

    def bind(port: int) -> int:
        held = stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        return int(held.getsockname()[1])

    while True:
        broker = bind(0)
        with contextlib.suppress(OSError):  # the VIP port may belong to another process
            bind(broker - VIP_DISTANCE)
            return bind(0), broker


class EmbeddedBroker:
    """A name server and a broker between `with` and its end. Every method may be called in any thread."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._clock = JumpingClock()
        self._background = BackgroundLoop("tests.spark")
        self._ending = contextlib.AsyncExitStack()
        self._holding = contextlib.ExitStack()
        self._ports = hold_ports(self._holding)

    def __enter__(self) -> Self:
        self._background.__enter__()
        self.start()
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self.stop()
        self._background.__exit__(None, None, None)
        self._holding.close()

    @property
    def nameserver(self) -> str:
        """The name server's `host:port`."""
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        """Start at the same addresses each time, with the stored data."""

        async def start() -> EmbeddedRocketMQ:
            port, broker_port = self._ports
            options = EmbeddedOptions(port=port, broker_port=broker_port, data_dir=self._data_dir)
            embedded = await self._ending.enter_async_context(embedded_rocketmq(options, self._clock))
            self._client = ClientInstance(ClientOptions(nameservers=(embedded.nameserver,)), clock=self._clock)
            self._ending.push_async_callback(self._client.close)
            return embedded

        self._embedded = self._run(start)

    def stop(self) -> None:
        """Stop. A second call does nothing."""
        self._run(self._ending.aclose)

    def create_topic(self, name: str, queues: int, permission: int = 6) -> None:
        """Create a topic, or change its queues or its permission; 4 is read-only."""
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=permission)
        self._do(lambda: self._embedded.broker.topics.put(config))

    def has_topic(self, name: str) -> bool:
        """Whether a topic exists."""
        return self._do(lambda: self._embedded.broker.topics.get(name) is not None)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages."""

        def delete() -> None:
            self._embedded.broker.topics.delete(name)
            self._embedded.broker.store.delete_topic(name)

        self._do(delete)

    def send(
        self,
        topic: str,
        *bodies: str | bytes,
        queue_id: int = 0,
        tags: str = "",
        properties: dict[str, str] | None = None,
        sys_flag: int = 0,
    ) -> None:
        """Store messages in a queue, one after another."""

        async def send() -> None:
            await self._client.routes.refresh(topic)  # its queues may have changed
            for body in bodies:
                content = body.encode() if isinstance(body, str) else body
                message = OutgoingMessage(topic, content, tags=tags, properties=properties or {}, sys_flag=sys_flag)
                await self._client.producer.send(message, selector=select_by_id(queue_id, ""))

        self._run(send)

    def fill(self, topic: str, queues: int, each: int) -> None:
        """Create a topic with `each` messages in each queue, with the bodies `0:0`, `0:1`, ..."""
        self.create_topic(topic, queues)
        for queue_id in range(queues):
            self.send(topic, *(f"{queue_id}:{number}" for number in range(each)), queue_id=queue_id)

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """A group's committed offsets by queue id."""
        return self._do(lambda: dict(sorted(self._embedded.broker.offsets.queues(group, topic).items())))

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commit offsets for a group."""

        def commit() -> None:
            for queue_id, offset in offsets.items():
                self._embedded.broker.offsets.commit(group, topic, queue_id, offset)

        self._do(commit)

    def reset(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Reset a group, as an operator does by request 222: the next pull of each queue returns the reset."""

        def reset() -> None:
            for queue_id, offset in offsets.items():
                self._embedded.broker.offsets.reset(group, topic, queue_id, offset)

        self._do(reset)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a reset that no pull has returned yet."""
        return self._do(lambda: self._embedded.broker.offsets.pending_reset(group, topic, queue_id))

    def connect_consumer(self, group: str) -> None:
        """Add a consumer to a group."""
        client, address = self._client, self._embedded.broker.address
        data = HeartbeatData(CONSUMER, (ConsumerData(group, ()),))
        self._run(lambda: send_heartbeat(client.remoting, address, data))

    def disconnect_consumer(self, group: str) -> None:
        """Remove the consumer from the group."""
        client, address = self._client, self._embedded.broker.address
        self._run(lambda: unregister_client(client.remoting, address, CONSUMER, consumer_group=group))

    def change_settings(self, **settings: str) -> None:
        """Change broker settings, as mqadmin's updateBrokerConfig does."""
        broker = self._embedded.broker
        self._do(lambda: broker.change_settings(broker.settings.changed(settings)))

    def forget_group(self, group: str) -> None:
        """Lose a group's offsets."""
        self._do(lambda: self._embedded.broker.offsets.forget(group=group))

    def pass_hours(self, hours: float) -> None:
        """Advance the broker's clock, and delete messages older than its retention time of three days."""

        def later() -> None:
            self._clock.jump_to(self._clock.wall() + hours * HOUR_SECONDS)
            self._embedded.broker.store.expire()

        self._do(later)

    def now_ms(self) -> int:
        """The broker's time."""
        return int(self._clock.wall() * 1000)

    def _do(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return self._run(call)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._background.run(work, SECONDS)


def queue(topic: str, queue_id: int) -> MessageQueue:
    """A queue of the embedded broker."""
    return MessageQueue(topic, BROKER, queue_id)
