"""A name server and a broker in one scripted peer: topics in memory, groups, offsets, locks.

It answers as a broker does (protocol.md §4) unless a test scripts another answer. `peer.on` replaces any of them, and
`answer_pull` the next pull of a queue.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.group_bodies import LockBatchRequestBody, LockBatchResponseBody
from rmqd.wire.bodies.heartbeat_data import HeartbeatData
from rmqd.wire.bodies.route_data import TopicQueueMappingInfo, TopicRouteData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group_headers import (
    GetConsumerListByGroupRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.headers.send_headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.properties import PullSysFlag, parse_properties
from rmqd.wire.topics import retry_topic
from tests.client.peer import Peer, Reply, route_of, routes, stored
from tests.waiting import eventually

BROKER = "a"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was received by a normal send."""

    header: SendMessageRequestHeaderV2
    body: bytes

    @property
    def properties(self) -> dict[str, str]:
        return parse_properties(self.header.properties or "")


class ScriptedBroker:
    """A broker whose topics are created by `create_topic`, and a group's retry topic by its first heartbeat.

    Groups are known unless `knows_groups` is false: they have an offset on their retry topic, so messages that a test
    stores before the first member starts are consumed, as by an existing group.
    """

    def __init__(self, peer: Peer, name: str = BROKER) -> None:
        self.peer = peer
        self.name = name
        self.messages: dict[MessageQueue, list[StoredMessage]] = {}
        self.first: dict[MessageQueue, int] = defaultdict(int)  # offset of the first kept message
        self.offsets: dict[tuple[str, MessageQueue], int] = {}
        self.commits: list[tuple[MessageQueue, int]] = []
        self.members: dict[str, list[str]] = defaultdict(list)
        self.locks: dict[tuple[str, MessageQueue], str] = {}
        self.pulls: list[PullMessageRequestHeader] = []
        self.sent_back: list[ConsumerSendMsgBackRequestHeader] = []
        self.sent: list[Sent] = []
        self.before_heartbeat: list[Callable[[], object]] = []  # each is called once
        self.damaged: dict[tuple[MessageQueue, int], Callable[[bytes], bytes]] = {}  # changes to returned records
        self.notifies = True  # whether members are notified of membership changes
        self.knows_groups = True
        self.redelivers = False  # whether messages sent back are redelivered at once
        self._met: set[str] = set()  # groups that sent a heartbeat
        self._log: list[StoredMessage] = []  # index: commit log offset
        self._by_topic: dict[str, TopicRouteData] = {}
        self._answers: dict[MessageQueue, deque[Reply | None]] = defaultdict(deque)
        self._grown = asyncio.Condition()
        self._scripts = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: routes(self._by_topic),
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.SEND_MESSAGE_V2: self.send,
        }
        for code, script in self._scripts.items():
            peer.on(code, script)  # type: ignore[arg-type]

    # --- changes by tests

    def create_topic(self, topic: str, queues: int = 1) -> list[MessageQueue]:
        """Create a topic, or change its number of queues."""
        self._by_topic[topic] = route_of({self.name: self.peer.address}, queues)
        made = [MessageQueue(topic, self.name, number) for number in range(queues)]
        for queue in made:
            self.messages.setdefault(queue, [])
        return made

    def lead(self, topic: str, *infos: TopicQueueMappingInfo, others: Mapping[str, Peer] | None = None) -> None:
        """Make a topic static, with these mappings; `others` are the further brokers of its route."""
        addresses = {self.name: self.peer.address, **{name: peer.address for name, peer in (others or {}).items()}}
        self._by_topic[topic] = replace(route_of(addresses, 1), mappings=infos)

    def serve(self, peer: Peer, broker_id: int, *, with_master: bool) -> None:
        """Make another peer a replica of this broker with the same answers, and put it in all known routes."""
        for code, script in self._scripts.items():
            peer.on(code, script)  # type: ignore[arg-type]
        replicas = ({0: self.peer.address} if with_master else {}) | {broker_id: peer.address}
        for topic, route in self._by_topic.items():
            self._by_topic[topic] = route_of({self.name: replicas}, route.queue_datas[0].read_queue_nums)

    async def store(self, queue: MessageQueue, *bodies: bytes, **fields: object) -> None:
        """Store messages at the end of a queue; `fields` are StoredMessage's."""
        for body in bodies:
            message = StoredMessage(topic=queue.topic, queue_id=queue.queue_id, body=body, **fields)  # type: ignore[arg-type]
            self._append(queue, message)
        async with self._grown:
            self._grown.notify_all()

    def answer_pull(self, queue: MessageQueue, *replies: Reply | None) -> None:
        """Set the answers to the next pulls of a queue; None leaves a pull unanswered."""
        self._answers[queue].extend(replies)

    def forget_answers(self, queue: MessageQueue) -> None:
        """Discard the scripted answers to pulls of a queue."""
        self._answers[queue].clear()

    def found(self, queue: MessageQueue, records: bytes, next_offset: int) -> Reply:
        """The answer to a pull that found something, with any bytes as its body."""
        return self._reply(queue, ResponseCode.SUCCESS, next_offset, body=records)

    def nothing(self, queue: MessageQueue, code: ResponseCode, next_offset: int, remark: str = "") -> Reply:
        """The answer to a pull that found nothing, or an illegal offset (21)."""
        return self._reply(queue, code, next_offset, remark)

    def records(self, queue: MessageQueue, start: int = 0, end: int | None = None) -> bytes:
        """Stored messages as a pull's body."""
        return b"".join(self._record(queue, message) for message in self.messages[queue][start:end])

    def end(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message gets."""
        return self.first[queue] + len(self.messages[queue])

    async def gain(self, group: str, client_id: str) -> None:
        """Add another client to a group, as its heartbeat would."""
        self.members[group].append(client_id)
        await self._notify(group)

    async def lose(self, client_id: str) -> None:
        """Remove a client from its groups, as if its connection was closed."""
        for group, ids in self.members.items():
            if client_id in ids:
                ids.remove(client_id)
                await self._notify(group)

    async def committed(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Wait until the group committed this offset."""
        await eventually(
            lambda: self.offsets.get((group, queue)) == offset,
            f"offset {offset} of {queue} is committed; it is {self.offsets.get((group, queue))}",
        )

    def pulled_offsets(self, queue: MessageQueue) -> list[int]:
        """The offsets of the pulls of a queue so far."""
        return [pull.queue_offset for pull in self.pulls if self._queue_of(pull) == queue]

    def commits_of(self, queue: MessageQueue) -> list[int]:
        """The committed offsets of a queue, in order."""
        return [offset for committed, offset in self.commits if committed == queue]

    def damage(self, queue: MessageQueue, offset: int, change: Callable[[bytes], bytes]) -> None:
        """Return a changed record for a stored message; an identity function repairs it."""
        self.damaged[queue, offset] = change

    # --- answers

    def _record(self, queue: MessageQueue, message: StoredMessage) -> bytes:
        record, change = encode_message(message), self.damaged.get((queue, message.queue_offset))
        return record if change is None else change(record)

    def _append(self, queue: MessageQueue, message: StoredMessage) -> None:
        message = replace(message, queue_offset=self.end(queue), commit_log_offset=len(self._log))
        self.messages[queue].append(message)
        self._log.append(message)

    async def _heartbeat(self, command: RemotingCommand) -> Reply:
        while self.before_heartbeat:
            self.before_heartbeat.pop()()
        data = HeartbeatData.from_json(command.body)
        for consumer in data.consumer_data_set:
            group = consumer.group_name
            if retry_topic(group) not in self._by_topic:
                self.create_topic(retry_topic(group))
            if self.knows_groups and group not in self._met:
                self._met.add(group)
                self.offsets.setdefault((group, MessageQueue(retry_topic(group), self.name, 0)), 0)
            if data.client_id not in self.members[group]:
                self.members[group].append(data.client_id)
                await self._notify(group)
        return Reply()

    async def _unregister(self, command: RemotingCommand) -> Reply:
        header = UnregisterClientRequestHeader.from_ext_fields(command.ext_fields)
        group = header.consumer_group or ""
        if header.client_id in self.members[group]:
            self.members[group].remove(header.client_id)
            await self._notify(group)
        return Reply()

    async def _notify(self, group: str) -> None:
        if self.notifies:
            await self.peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, oneway=True)

    def _list(self, command: RemotingCommand) -> Reply:
        header = GetConsumerListByGroupRequestHeader.from_ext_fields(command.ext_fields)
        return Reply(body=json.dumps({"consumerIdList": self.members[header.consumer_group]}).encode())

    def query(self, command: RemotingCommand) -> Reply:
        """Tell a stored offset."""
        header = QueryConsumerOffsetRequestHeader.from_ext_fields(command.ext_fields)
        found = self.offsets.get((header.consumer_group, MessageQueue(header.topic, self.name, header.queue_id)))
        if found is None:
            return Reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        return _offset(found)

    def update(self, command: RemotingCommand) -> Reply:
        """Store an offset."""
        header = UpdateConsumerOffsetRequestHeader.from_ext_fields(command.ext_fields)
        queue = MessageQueue(header.topic, self.name, header.queue_id)
        self._commit(header.consumer_group, queue, header.commit_offset)
        return Reply()

    def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.offsets[group, queue] = offset
        self.commits.append((queue, offset))

    def _max(self, command: RemotingCommand) -> Reply:
        return _offset(self.end(self._queue_of(GetMaxOffsetRequestHeader.from_ext_fields(command.ext_fields))))

    def _min(self, command: RemotingCommand) -> Reply:
        return _offset(self.first[self._queue_of(GetMinOffsetRequestHeader.from_ext_fields(command.ext_fields))])

    def _search(self, command: RemotingCommand) -> Reply:
        header = SearchOffsetRequestHeader.from_ext_fields(command.ext_fields)
        queue = self._queue_of(header)
        later = (m.queue_offset for m in self.messages[queue] if m.store_timestamp >= header.timestamp)
        return _offset(next(later, self.end(queue)))

    def _earliest(self, command: RemotingCommand) -> Reply:
        header = GetEarliestMsgStoretimeRequestHeader.from_ext_fields(command.ext_fields)
        kept = self.messages[self._queue_of(header)]
        return Reply(ext_fields={"timestamp": str(kept[0].store_timestamp if kept else -1)})

    def lock(self, command: RemotingCommand) -> Reply:
        """Lock the queues that no other client has locked."""
        body = LockBatchRequestBody.from_json(command.body)
        granted = frozenset(
            queue
            for queue in body.queues
            if self.locks.setdefault((body.consumer_group, queue), body.client_id) == body.client_id
        )
        return Reply(body=LockBatchResponseBody(granted).to_json())

    def _unlock(self, command: RemotingCommand) -> Reply:
        body = LockBatchRequestBody.from_json(command.body)
        for queue in body.queues:
            if self.locks.get((body.consumer_group, queue)) == body.client_id:
                del self.locks[body.consumer_group, queue]
        return Reply()

    async def _pull(self, command: RemotingCommand) -> Reply | None:
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        self.pulls.append(header)
        queue = MessageQueue(header.topic, self.name, header.queue_id)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self._commit(header.consumer_group, queue, header.commit_offset)
        if answers := self._answers[queue]:
            return answers.popleft()
        offset = header.queue_offset
        if not self.first[queue] <= offset <= self.end(queue):
            moved = min(max(offset, self.first[queue]), self.end(queue))
            return self.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, moved, "OFFSET_OVERFLOW_BADLY")
        if offset == self.end(queue) and not header.sys_flag & PullSysFlag.SUSPEND:
            return self.nothing(queue, ResponseCode.PULL_NOT_FOUND, offset)
        async with self._grown:
            await self._grown.wait_for(lambda: self.end(queue) > offset)
        start = offset - self.first[queue]
        body = self.records(queue, start, start + header.max_msg_nums)
        return self.found(queue, body, min(offset + header.max_msg_nums, self.end(queue)))

    def _reply(
        self, queue: MessageQueue, code: ResponseCode, next_offset: int, remark: str = "", body: bytes = b""
    ) -> Reply:
        header = PullMessageResponseHeader(next_offset, self.first[queue], self.end(queue))
        return Reply(code, remark, header.ext_fields(), body)

    def _queue_of(self, header: _QueueHeader) -> MessageQueue:
        return MessageQueue(header.topic, self.name, header.queue_id)

    async def _send_back(self, command: RemotingCommand) -> Reply:
        header = ConsumerSendMsgBackRequestHeader.from_ext_fields(command.ext_fields)
        self.sent_back.append(header)
        if self.redelivers:
            message = self._log[header.offset]
            origin = message.properties.get(names.RETRY_TOPIC, message.topic)
            again = replace(
                message,
                queue_id=0,
                topic=retry_topic(header.group),
                reconsume_times=message.reconsume_times + 1,
                properties={**message.properties, names.RETRY_TOPIC: origin},
            )
            self._append(MessageQueue(again.topic, self.name, 0), again)
            async with self._grown:
                self._grown.notify_all()
        return Reply()

    def send(self, command: RemotingCommand) -> Reply:
        """Store a message of a normal send."""
        self.sent.append(Sent(SendMessageRequestHeaderV2.from_ext_fields(command.ext_fields), command.body))
        return stored()


class _QueueHeader(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


def _offset(value: int) -> Reply:
    return Reply(ext_fields={"offset": str(value)})
